"""The parts of scripts/install_check.py."""
