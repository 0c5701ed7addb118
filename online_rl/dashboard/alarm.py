"""One thing that an operator should look at."""

from typing import Literal

from pydantic import BaseModel, ConfigDict


class Alarm(BaseModel):
    """`about` names the view that shows more."""

    model_config = ConfigDict(frozen=True)

    severity: Literal["critical", "warning"]
    title: str
    action: str
    about: Literal["now", "adaptation", "learner", "feedback", "versions"]
