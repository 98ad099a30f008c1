"""The frameworks that people train with, observed as they are: one file a framework maps its functions to points.

:func:`probe.adapters.attachment.attach` puts them on and takes them off again.
"""
