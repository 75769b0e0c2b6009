"""Trains the classifier with the engine that is its argument."""

import importlib
import sys

import torch
import torch.distributed as dist
from reviews import logs

torch.set_num_threads(1)
logs.begin()
name, *arguments = sys.argv[1].split(":")
importlib.import_module(f"reviews.engines.{name}").train(*map(int, arguments))
if dist.is_initialized():
    dist.barrier()
    dist.destroy_process_group()
