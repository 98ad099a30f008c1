"""The parts that :class:`probe.core.protocol.DataProto` is made of."""
