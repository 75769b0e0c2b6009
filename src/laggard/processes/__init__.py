"""The processes of this machine. Standard library only: this runs in trainings and in the gate."""
