"""``Trainer(callbacks=[probe.TrainerCallback(…)])``: a training of Transformers or TRL is recorded."""

from __future__ import annotations

from typing import Any

from probe.adapters.attachment import attach
from probe.adapters.transformers import finish
from probe.errors import MissingDependencyError
from probe.session import Session, current_session, start

try:
    from transformers import TrainerCallback as _Base
except ModuleNotFoundError:  # whoever looks at all of probe's names needn't have it
    _Base = object


class TrainerCallback(_Base):
    """Records a training of Transformers' ``Trainer``, or of one of TRL's, while it trains.

    A callback isn't handed the batches, so that this one attaches to Transformers and TRL as :func:`probe.attach` does.
    A session that is open already is used and stays open. Otherwise one begins as the training does, with the
    trainer's arguments as its ``config``, and ends with it. ``detach()`` of what :func:`probe.attach` gives takes the
    observation off again.

    Args:
        project: As of :func:`probe.start`.
        experiment: Likewise.
        **options: Likewise; they are checked as the training begins.

    Raises:
        MissingDependencyError: Transformers isn't installed.

    Attributes:
        session: The session that is recorded in, None outside of a training.
    """

    def __init__(self, project: str = "transformers", experiment: str | None = None, **options: Any) -> None:
        if _Base is object:
            raise MissingDependencyError(
                "probe.TrainerCallback needs the package 'transformers'; install it with: pip install transformers"
            )
        self.session: Session | None = None
        self._given = (project, experiment, options)
        self._own = False
        attach("trl")

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin to record, unless somebody has.

        Args:
            args: The trainer's.
            state: Likewise.
            control: Likewise.
            **kwargs: Likewise.

        Raises:
            InputError: An option is none of :func:`probe.start`.
            RunError: The run directory can't be made.
        """
        del state, control, kwargs  # a hook is given more than this one needs
        attach("trl")  # detached since, perhaps
        self.session = current_session()
        if self.session is None:
            project, experiment, options = self._given
            self.session = start(project, experiment, **{"config": args.to_dict(), **options})
            self._own = True

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End the last step, and the session that :meth:`on_train_begin` began.

        Args:
            args: The trainer's.
            state: Likewise.
            control: Likewise.
            **kwargs: Likewise.
        """
        del args, state, control, kwargs  # as above
        opened, self.session = self.session, None
        if self._own and opened is not None:
            self._own = False
            finish()
            opened.close()
