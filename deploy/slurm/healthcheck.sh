#!/bin/bash
# SLURM's HealthCheckProgram: drains a node that became unfit, and resumes a node that laggard drained when it is fit
# again. SLURM ignores the exit status.
# shellcheck source-path=SCRIPTDIR source=gate.sh
. "${0%/*}/gate.sh" || exit 0
# shellcheck source-path=SCRIPTDIR source=gate.conf
[ -r "${0%/*}/gate.conf" ] && . "${0%/*}/gate.conf"
gate periodic --drain --resume
exit 0
