#!/bin/bash
PYTHONPATH={source} exec {python} -m laggard "$@"
