"""What the payloads of the built-in contracts have in common: camel case on the wire, open objects.

Times are seconds since the epoch, as everywhere in the authority's records.
"""

from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict
from pydantic import ValidationError as Unreadable
from pydantic.alias_generators import to_camel

from accord.fabric.errors import ValidationError
from accord.kernel.finding import pointer


class Payload(BaseModel):
    """A payload; its fields are the contract's members in Python's spelling."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, frozen=True
    )

    @classmethod
    def read(cls, value: Any) -> Self:
        """The payload that a value is, once the contract's schema has accepted it.

        Raises:
            ValidationError: A number in it is beyond what can be read.
        """
        try:
            return cls.model_validate(value)
        except Unreadable as error:
            issues = [
                {"path": pointer(*each["loc"]), "message": each["msg"]} for each in error.errors()
            ]
            raise ValidationError("the payload cannot be read", issues=issues) from None

    def wire(self) -> dict[str, Any]:
        """As JSON; what is at its default stays out, a null that was meant stays in."""
        return self.model_dump(by_alias=True, exclude_defaults=True, mode="json")


class Nothing(Payload):
    """An object of which nothing is asked."""
