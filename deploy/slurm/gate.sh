# shellcheck shell=bash
# The part that prolog.sh, epilog.sh and healthcheck.sh share, and source. It needs bash and no other program, and fails
# open: a laggard that is broken, missing, slow or hung rejects no job. Only its line `gate: reject` does.
#
# A prolog first asks the agent (agent_passes): by curl, which costs no Python, else by a Python without laggard. That can
# only pass a job. In all other cases laggard runs as a whole; of prologs, or epilogs, that come at once it runs for one of
# them, and the others take over what it said (take_turn).

LAGGARD=/opt/laggard/bin/laggard
MODE=report-only
COLLECTOR=
SCONTROL=/usr/bin/scontrol
DISABLED=/etc/laggard/disabled
GATE_SECONDS=15
GANG_SECONDS=200
GANG_JOIN_SECONDS=60
GANG_TOKEN=/etc/laggard/slurm/gang-token
LIMIT=GATE_SECONDS
CHECKED=/run/laggard/gate-checked
FLAGS=()
QUICK=on
CURL=/usr/bin/curl
PYTHON= # which asks where no curl is; empty: the one beside LAGGARD
STAT=/usr/bin/stat
FLOCK=/usr/bin/flock
LOGGER=/usr/bin/logger
# Root's: what prologs leave for the next ones, and the folder of the agent's socket.
RUN=/run/laggard

ASK_SECONDS=2      # for the agent's first line; ASK_MOST_SECONDS: for its answer, while it works on it
ASK_MOST_SECONDS=5 # and never more than a third of GATE_SECONDS
ANSWER_BYTES=512
TICKET_TICKS=360000 # an hour, in hundredths of a second: how long a ticket counts
JOB_LINES=1024
SHARED_TICKS=500   # how long before a prolog a check may have begun that passed another one

gate() { # profile, flags of `laggard healthcheck`... Returns 1 where the node is to be rejected, else 0.
    [ "$1" = epilog ] && note_job end
    judge "$@" || return 1
    [ "$1" != prolog ] || note_job start
}

judge() { # as gate
    [ -e "$DISABLED" ] && [ "$1" != periodic ] && return 0 # the health check goes on, and only logs that it is off
    local arrived checks=0 lock='' most now=0 reject=0 said='' shared='' ticket='' ticks=0 until words
    if ! [[ $GATE_SECONDS =~ ^[1-9][0-9]{0,4}$ ]]; then # bash's own error would be status 1, which drains the node
        echo "laggard: $LIMIT takes a whole number of seconds, not $GATE_SECONDS: 15 is taken" >&2
        GATE_SECONDS=15
    fi
    read_uptime
    arrived=$ticks
    until=$((now + GATE_SECONDS))
    # After each boot and each change of gate.conf, until nothing is wrong, the gate also checks its own setup, and
    # complains in the log of what would let all pass.
    [ "$MODE" = enforce ] && [[ ! -s $CHECKED || ${0%/*}/gate.conf -nt $CHECKED ]] && { : >>"$CHECKED"; } 2>/dev/null && checks=1
    ((checks)) || ! agent_passes "$@" || return 0
    words=(healthcheck --profile "$1" --gate "$MODE" --scontrol "$SCONTROL" --kill-switch "$DISABLED")
    [ -n "$COLLECTOR" ] && words+=(--collector "$COLLECTOR")
    [ -n "$SLURM_CONF" ] && export SLURM_CONF
    [ -s "$RUN/gate-jobs" ] && is_ours "$RUN/gate-jobs" && export LAGGARD_GATE_JOBS=$RUN/gate-jobs
    ((checks)) && words+=(--check-gate)
    words+=("${@:2}" "${FLAGS[@]}")
    if take_turn "$1" && take_over "$1"; then
        [ -n "$said" ] && tell_shared
    else
        run_laggard
    fi
    [ -n "$lock" ] && exec {lock}>&-
    return $reject
}

run_laggard() { # Runs it within the time that is left, and sets `reject` and `said`.
    local answer began changed='' decision='' group=0 line seconds
    read_uptime
    began=$ticks
    seconds=$((until - now))
    ((seconds > 0)) || { echo "pass: no answer within $GATE_SECONDS s" >&2; return; }
    [ -n "$ticket" ] && export LAGGARD_GATE_TICKET=$ticket
    # laggard ends by itself some time before it is killed.
    words=("${words[@]:0:5}" --deadline "$((seconds > 4 ? seconds - 2 : (seconds + 1) / 2))" "${words[@]:5}")
    # What is started here is a process group, whose number comes first. No process of it may hold this script's output
    # open: SLURM reads it to its end. Nor the lock.
    exec {answer}< <(
        [ -n "$lock" ] && exec {lock}>&-
        set -m
        { echo "$BASHPID" && exec "$LAGGARD" "${words[@]}"; } </dev/null 2>&1 &
    )
    IFS= read -r -t "$seconds" -u "$answer" group
    while read_uptime && ((now < until)) && IFS= read -r -t $((until - now)) -u "$answer" line; do
        case ${FLAGS[*]} in *--verbose*) echo "$line" >&2 ;; esac
        case $line in
            "gate: reject" | "gate: unfit") decision=drain ;;
            "gate: pass, "* | "gate: switched off"*) line=${line#gate: } decision="pass: ${line#pass, }" ;;
            *) said+=${said:+; }$line ;;
        esac
        case $line in "gate: reject") reject=1 ;; "gate: setup not checked"* | "gate: WRONG SETUP"*) checks=0 ;; esac
        # Whoever resumed the node knows of the jobs that failed before.
        case $line in *" was resumed"* | *" was seen before the resume of "*) is_ours "$RUN/gate-jobs" && : >"$RUN/gate-jobs" ;; esac
        case $line in "gate: reject" | "gate: unfit" | "slurm: "*" was drained" | "slurm: "*" is drained already"* | "slurm: "*" was resumed"*) changed=1 ;; esac
    done
    # None of it outlives this script: it would drain the node of a job that was let in.
    ((group > 1)) && kill -KILL -- "-$group" 2>/dev/null
    exec {answer}<&-
    read_uptime
    if ((now >= until)); then
        decision=${decision:-pass: no answer within $GATE_SECONDS s}
    fi
    tell_decision
    ((checks && now < until)) && echo checked >"$CHECKED"
    [ -n "$changed" ] && note_change
    # From `words` without the deadline; the lock is still held.
    [ -n "$lock" ] && printf '%s\n' "$began $reject" "${words[*]:0:5} ${words[*]:7}" "$said" >"$shared"
}

tell_decision() { # `drain: WHY`, or `pass: WHY; ...`: `decision` before what is in `said`, and into it.
    decision=${decision:-pass: no verdict}
    case $decision in drain) said="drain: $said" ;; *) said=$decision${said:+; $said} ;; esac
    case ${FLAGS[*]} in *--verbose*) said=${said%%; *} ;; esac # the rest has been told
    echo "$said" >&2
}

note_change() { # An older report stands for nothing, and the next prolog runs as a whole: it alone knows of a resume.
    is_ours "$RUN" || return
    echo "$ticks" >"$RUN/gate-changed"
    is_ours "$RUN/gate-ticket" && : >"$RUN/gate-ticket"
    ticket=''
}

# --- The jobs of this node: when each began and how it ended, for the probe `jobs`, which sees a node on which all fail.

note_job() { # start or end: one line with the uptime in hundredths of a second, the job, its user, and exit status:signal.
    local jobs=$RUN/gate-jobs lines ticks now
    [[ $SLURM_JOB_ID =~ ^[0-9]{1,19}$ && $SLURM_JOB_UID =~ ^[0-9]{1,10}$ ]] && is_ours "$RUN" || return 0
    read_uptime
    [ -e "$jobs" ] || (umask 022 && : >>"$jobs") 2>/dev/null
    is_ours "$jobs" || return 0
    { echo "$1 $ticks $SLURM_JOB_ID $SLURM_JOB_UID ${SLURM_JOB_EXIT_CODE2:-}" >>"$jobs"; } 2>/dev/null
    [ "$1" = end ] || return 0
    mapfile -t lines <"$jobs"
    ((${#lines[@]} > JOB_LINES)) && printf '%s\n' "${lines[@]: -JOB_LINES / 2}" >"$jobs"
    # After a failure the next prolog looks itself, and so does the agent.
    [[ $SLURM_JOB_EXIT_CODE2 =~ ^[0-9]+:[0-9]+$ && $SLURM_JOB_EXIT_CODE2 != 0:0 ]] && note_change
    return 0
}

# --- A prolog that costs nothing: the agent's last report stands for a check.

agent_passes() { # profile, flags... Returns 0 where the job may start. Else laggard has to run.
    local answer at boot hash newer=0 profile rest schema why
    [ "$1" = prolog ] && [ "$QUICK" = on ] && is_ours "$RUN" || return 1
    most=$((GATE_SECONDS / 3 < ASK_MOST_SECONDS ? GATE_SECONDS / 3 : ASK_MOST_SECONDS))
    # Each of these asks for more than the agent's report has. Without a collector the gate complains, each time.
    case " ${*:2} " in *" --active "*) return 1 ;; esac
    knows_flags || return 1
    [[ $MODE = report-only || ($MODE = enforce && -n $COLLECTOR) ]] || return 1
    [[ -z $SLURM_JOB_GPUS || $SLURM_JOB_GPUS =~ ^[0-9,-]{1,128}$ ]] || return 1
    # What may be asked, the last whole check has written down; it does so again where its ticket no longer counts.
    ticket=$RUN/gate-ticket
    is_ours "$ticket" && [[ $ticket -nt $LAGGARD && ! ${0%/*}/gate.conf -nt $ticket ]] || return 1
    IFS=' ' read -r schema profile hash at rest <"$ticket"
    [[ $schema = gate/1 && $profile = prolog && $hash =~ ^[0-9a-f]{32}$ && -z $rest ]] || return 1
    is_ticks "$at" && ((at <= ticks && ticks - at < TICKET_TICKS)) || return 1
    read_changed && newer=$((changed / 100)) || return 1
    IFS= read -r boot </proc/sys/kernel/random/boot_id
    ask_agent "gate/1/prolog/$hash/$boot/$newer/${SLURM_JOB_GPUS:--}/${most}000" "$((most + 1))" || return 1
    [[ $answer = PASS\ * ]] || return 1
    answer="pass: nothing critical (the agent, ${answer#PASS } s ago)"
    echo "$answer" >&2 # the agent's log has it as well: a process for that would cost as much as the question
    ticket='' # nothing runs that could write one
}

knows_flags() { # Whether FLAGS change nothing about the answer.
    [[ ${FLAGS[*]} =~ ^(\ ?(--verbose|--slurm-node[=\ ][A-Za-z0-9._-]+))*$ ]]
}

ask_agent() { # question, seconds. Into `answer`: the agent's line. Returns 1 where none counts, with the reason in `why`.
    local asker first='' from rest='' socket=$RUN/agent/gate.sock status
    answer=''
    check_place || { why="$socket$why"; return 1; }
    if [ -x "$CURL" ]; then
        asker=("$CURL" -q -s -f -N --noproxy '*' -m "$2" --unix-socket "$socket" "http://localhost/$1")
    else
        asker=("${PYTHON:-${LAGGARD%/*}/python3}" -I -S -c "$ASKS" "$socket" "$2" "$1")
        [ -x "${asker[0]}" ] || { why="there is neither $CURL nor ${asker[0]}"; return 1; }
    fi
    exec {from}< <(exec "${asker[@]}" 2>/dev/null)
    # The first line comes at once, the second once the agent knows. A NUL, or more bytes than these take, is no answer.
    IFS= read -r -n "$ANSWER_BYTES" -t "$ASK_SECONDS" -u "$from" first
    status=$?
    if ((status == 0)); then
        IFS= read -r -d '' -n "$ANSWER_BYTES" -t "$2" -u "$from" rest
        status=$?
    fi
    exec {from}<&-
    ((status == 1)) || kill "$!" 2>/dev/null
    why="$socket gives no answer"
    [ -n "$first" ] || return 1
    why+=" that counts"
    # 1: it has ended.
    [[ $status = 1 && $first = WAIT && $rest =~ ^(PASS\ [0-9]{1,5}|CHECK\ [a-z]+)$'\n' ]] || return 1
    answer=${BASH_REMATCH[1]} why=''
}

# What asks where no curl is: as curl does, it prints what the agent says.
ASKS='import signal, socket, sys
path, seconds, question = sys.argv[1:]
signal.alarm(int(seconds))
agent = socket.socket(socket.AF_UNIX)
agent.connect(path)
agent.sendall(("GET /%s HTTP/1.1\r\nHost: localhost\r\n\r\n" % question).encode())
said = agent.makefile("rb")
while said.readline(512).strip():  # the head
    pass
for line in iter(lambda: said.readline(512), b""):
    sys.stdout.buffer.write(line)
    sys.stdout.flush()'

check_place() { # Whether nobody but root, this user and the agent can have put the socket there; else `why` says it.
    local above=() each folder mode owner path=$RUN/agent
    why=" is no path of a socket"
    [[ $path = /* ]] || return 1
    while [ -n "$path" ]; do
        path=${path%/*}
        above=("${path:-/}" "${above[@]}")
    done
    {
        for each in "${above[@]}"; do
            IFS=' ' read -r mode owner || return 1
            why=": others can put a folder there"
            [[ $owner = 0 || $owner = "$EUID" ]] && (((0x$mode & 0170000) == 0040000)) || return 1
            # Above the parent a sticky folder, as /tmp is one, keeps others from what is not theirs.
            ((!(0x$mode & 0022))) || { [[ $each != "$RUN" ]] && ((0x$mode & 01000)); } || return 1
        done
        why=" is not there"
        IFS=' ' read -r mode folder && IFS=' ' read -r each owner || return 1
        why=": others can write into its folder"
        (((0x$mode & 0170000) == 0040000 && !(0x$mode & 0022))) || return 1
        why=" is no socket"
        (((0x$each & 0170000) == 0140000)) || return 1
        why=" is another user's"
        [[ $owner = 0 || $owner = "$EUID" || $owner = "$folder" ]] || return 1
    } < <("$STAT" -c '%f %u' "${above[@]}" "$RUN/agent" "$RUN/agent/gate.sock" 2>/dev/null)
    why=''
}

tell_how_asked() { # For check.sh: whether a prolog can ask the agent, or why each of them starts laggard.
    local answer why=''
    if [ "$QUICK" != on ]; then
        why="QUICK of gate.conf is $QUICK"
    elif ! knows_flags; then
        why="FLAGS of gate.conf ask for more than the agent reports"
    elif ! is_ours "$RUN"; then
        why="there is no $RUN of this user's: install deploy/systemd/tmpfiles.d/laggard.conf"
    elif [ ! -S "$RUN/agent/gate.sock" ]; then
        why="no agent listens at $RUN/agent/gate.sock: is it up, and of this version?"
    else
        ask_agent is/anybody/there "$ASK_SECONDS" || true # who answers has no such question
    fi
    echo "gate: ${why:+each prolog starts laggard: }${why:-prologs ask the agent}"
}

# --- Many at once: one runs laggard, the others take over what it said.

take_turn() { # profile. Returns 0 once this script holds `lock`, on the file `shared`; else it runs laggard without.
    case $1 in prolog | epilog) ;; *) return 1 ;; esac
    case " ${words[*]} " in *" --active "*) return 1 ;; esac
    [[ -z $SLURM_JOB_GPUS || $SLURM_JOB_GPUS =~ ^[0-9,-]{1,128}$ ]] && is_ours "$RUN" || return 1
    shared=$RUN/gate-turn-$1${SLURM_JOB_GPUS:+-$SLURM_JOB_GPUS}
    # For this user alone from its begin on: who can open a file, if only to read it, can lock it as well, and no prolog
    # would get its turn, nor a verdict.
    [ -e "$shared" ] || (umask 077 && : >>"$shared") 2>/dev/null
    { exec {lock}>>"$shared"; } 2>/dev/null || { lock=''; return 1; }
    if is_ours "$shared" && wait_for_lock; then
        read_uptime
        return 0
    fi
    exec {lock}>&-
    lock=''
    return 1
}

wait_for_lock() { # The kernel takes it away from who ends, in whatever way.
    [ -x "$FLOCK" ] && "$FLOCK" -w "$((until - now))" "$lock"
}

take_over() { # profile. Returns 0 where another script's check counts for this one, and sets `reject` and `said`.
    local at of rest status text
    { IFS=' ' read -r at status rest && IFS= read -r of && IFS= read -r text; } <"$shared" || return 1
    is_ticks "$at" && [[ $status = [01] && -z $rest && $of = "${words[*]}" ]] && ((at <= ticks)) || return 1
    if ((at <= arrived)); then # It began before this script did: what came since, it did not see.
        [ "$1" = prolog ] && ((status == 0 && arrived - at <= SHARED_TICKS)) && read_changed && ((changed < at)) || return 1
    fi
    reject=$status said=$text
}

tell_shared() {
    said+=' (of a check for several jobs)'
    echo "$said" >&2
    log daemon.warning "$said"
}

# ---

log() { # priority, text: one line in the system's log, for which no job waits longer than a second.
    local job=''
    [[ $SLURM_JOB_ID =~ ^[0-9]{1,19}$ ]] && job="job $SLURM_JOB_ID: "
    [ -x "$LOGGER" ] && IFS= read -r -t 1 _ < <(exec "$LOGGER" -i -t laggard -p "$1" -- "$job${2//[[:cntrl:]]/ }" 2>&1)
    return 0
}

read_changed() { # Into `changed`: when the gate last drained, resumed or rejected, in hundredths of a second; 0: never.
    changed=0
    [ -e "$RUN/gate-changed" ] || return 0
    is_ours "$RUN/gate-changed" && IFS= read -r changed <"$RUN/gate-changed" && is_ticks "$changed"
}

is_ours() { # Whether nobody else has made it: this user's, and no link.
    [[ -O $1 && ! -L $1 ]]
}

is_ticks() {
    [[ $1 =~ ^(0|[1-9][0-9]{0,15})$ ]]
}

read_uptime() { # Into `now`, in seconds, and `ticks`, in hundredths: by the clock that nobody sets. The time of day may step.
    IFS=' ' read -r ticks _ </proc/uptime
    now=${ticks%.*}
    ticks=$((10#${ticks/./}))
    return 0
}
