"""PyTorch's debug server beside a run: what ``probe run --debug-server`` starts in each rank.

PyTorch 2.13 has ``torch.distributed.debug.start_debug_server``: each rank answers what it is asked by HTTP (stacks, the
flight recorder, the store), and a page on rank 0 asks all of them. It is experimental, and open to everyone who reaches
the machine: so nobody starts it but who asks for it. probe's own page there says where each rank is and what was found.
"""
