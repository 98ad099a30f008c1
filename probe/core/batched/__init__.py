"""The parts that :class:`probe.core.batched_data_dict.BatchedDataDict` is made of."""
