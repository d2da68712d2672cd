"""Triton kernels behind fuel's operations on CUDA.

The kernel modules import triton, so nothing imports them before they are needed: triton is optional
and comes with torch on CUDA machines. On the CPU they run in triton's interpreter, slowly, for tests.
"""
