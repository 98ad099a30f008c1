"""Where metrics go: one :class:`~probe.tracking.tracking.Tracking` in front of console, TensorBoard, MLflow, a file …"""
