"""The documented methods of a DataProto, one group a file; the functions behind them are in the package above."""
