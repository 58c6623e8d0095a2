"""The base class of the settings' sections: closed, frozen, strict about booleans."""

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator


class Section(BaseModel):
    """A table of the settings file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @field_validator("*", mode="before")
    @classmethod
    def _truth_is_no_number(cls, value: object, info: ValidationInfo) -> object:
        # pydantic would take `true` for 1.
        if (
            isinstance(value, bool)
            and cls.model_fields[str(info.field_name)].annotation is not bool
        ):
            raise ValueError("should not be true or false")
        return value
