"""The greeter over HTTP."""

from fastapi import FastAPI
from pydantic import BaseModel

app = FastAPI()


class Name(BaseModel):
    """Who is greeted."""

    name: str


class Greeting(BaseModel):
    """The greeting."""

    text: str


@app.post("/greet")
async def greet(who: Name) -> Greeting:
    """Greet somebody."""
    return Greeting(text=f"Good morning, {who.name}!")
