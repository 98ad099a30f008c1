"""Where metrics go: ``Tracking`` in front of console, TensorBoard, MLflow, a file, a user's own backends."""
