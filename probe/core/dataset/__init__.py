"""The parts that :class:`probe.core.rl_dataset.RLHFDataset` is made of: files, rows, chats, media, batches."""
