"""The folder that ``probe run`` puts on the path: of what lies here Python imports ``sitecustomize`` as it starts."""
