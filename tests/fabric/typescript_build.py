"""The TypeScript client and generated packages, checked, built and driven in Node or a browser."""

import asyncio
import json
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, Protocol

from playwright.async_api import Page
from starlette.applications import Starlette
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from accord.contracts import sdk
from accord.station.listener import Listener, bind
from accord.testing import nodejs
from accord.testing.browser import Chromium

ROOT: Final = Path(__file__).parents[2]
FABRIC: Final = ROOT / "packages/typescript"
PROGRAMS: Final = Path(__file__).parent / "typescript"
_TSCONFIG: Final = {
    "extends": "./fabric.json",
    "compilerOptions": {"rootDir": ".", "outDir": "built", "types": ["node"], "noEmit": False},
    "include": ["*.ts"],
}


class Driver(Protocol):
    """Does steps of `scenario.ts`, in Node or in a browser."""

    async def __call__(self, step: str, **given: Any) -> Any: ...


class Workshop:
    """A folder in which programs find `accord-fabric` and generated packages.

    `installed` has what npm installed for the lock of the client.
    """

    def __init__(self, folder: Path, installed: Path) -> None:
        self.folder = folder
        self._installed = installed
        modules = folder / "node_modules"
        modules.mkdir(parents=True)
        for package in sorted(installed.iterdir()):
            if not package.name.startswith("."):
                (modules / package.name).symlink_to(package)
        self.fabric = modules / "accord-fabric"
        self.fabric.mkdir()
        for name in ("package.json", "tsconfig.json", "biome.json"):
            shutil.copy(FABRIC / name, self.fabric / name)
        shutil.copytree(FABRIC / "src", self.fabric / "src")
        self.compile(self.fabric)

    def node(self, *command: str | Path, cwd: Path | None = None) -> str:
        """Run a program in Node and return what it prints."""
        ran = subprocess.run(
            [nodejs.node_program(), *command],
            cwd=cwd or self.folder,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr}"
        return ran.stdout

    def compile(self, project: Path) -> None:
        """Check the types of a project and build it."""
        self.node(self._installed / "typescript/bin/tsc", "--project", project)

    def lint(self, *folders: Path) -> None:
        """Lint folders with the rules of the client."""
        rules = f"--config-path={FABRIC}"
        self.node(self._installed / "@biomejs/biome/bin/biome", "lint", rules, *folders)

    def add(self, contracts: Iterable[Mapping[str, Any]]) -> None:
        """Generate, check and lint the packages of contracts."""
        for contract in contracts:
            package = sdk(contract, self.folder / "packages", force=True, language="typescript")
            self.compile(package)
            self.lint(package / "src")
            (self.folder / "node_modules" / package.name).symlink_to(package)

    def programs(self, *names: str) -> None:
        """Check, lint and build programs of the tests."""
        for name in names:
            shutil.copy(PROGRAMS / name, self.folder / name)
        shutil.copy(FABRIC / "tsconfig.json", self.folder / "fabric.json")
        (self.folder / "package.json").write_text('{"private": true, "type": "module"}')
        (self.folder / "tsconfig.json").write_text(json.dumps(_TSCONFIG))
        self.compile(self.folder)
        if names:
            self.lint(*(self.folder / name for name in names))

    def bundle(self, program: str) -> str:
        """A program of the tests as one script for browsers."""
        ran = subprocess.run(
            [nodejs.node_program(), "-e", _BUNDLE, self._installed / "esbuild", program],
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    @asynccontextmanager
    async def in_node(self, program: str = "scenario") -> AsyncIterator[Driver]:
        """Do steps of a program in Node until the block ends; then Node is killed."""
        process = await asyncio.create_subprocess_exec(
            nodejs.node_program(),
            "built/node.js",
            program,
            cwd=self.folder,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        stdin, stdout, turn = process.stdin, process.stdout, asyncio.Lock()

        async def perform(step: str, **given: Any) -> Any:
            async with turn:
                stdin.write(json.dumps({"step": step, "given": given}).encode() + b"\n")
                answer = json.loads(await stdout.readline())
            assert "error" not in answer, answer["error"]
            return answer["ok"]

        try:
            yield perform
        finally:
            process.kill()
            await process.wait()

    @asynccontextmanager
    async def served(self, program: str) -> AsyncIterator[int]:
        """Serve a page with a program of the tests, and yield the port."""
        script = self.bundle(program)

        async def page(_request: Any) -> Response:
            # No inline scripts and no `eval`, as careful sites have it.
            policy = {"content-security-policy": "script-src 'self'; default-src 'self' * ws:"}
            shown = "<!doctype html><body><script src='/app.js'></script></body>"
            return HTMLResponse(shown, headers=policy)

        async def app(_request: Any) -> Response:
            return Response(script, media_type="text/javascript")

        routes = [Route("/app.js", app), Route("/{rest:path}", page)]
        listener = Listener(Starlette(routes=routes))
        with bind("127.0.0.1", 0) as listening:
            serving = asyncio.create_task(listener.serve([listening]))
            await listener.serving.wait()
            try:
                yield listening.getsockname()[1]
            finally:
                listener.should_exit = True
                await serving

    @asynccontextmanager
    async def in_browser(
        self, chromium: Chromium, program: str = "browser.ts"
    ) -> AsyncIterator[Driver]:
        """Do steps on a page of another origin until the block ends."""
        async with self.served(program) as port, chromium.opened() as browser:
            opened = await browser.new_page()
            await opened.goto(f"http://127.0.0.1:{port}/")
            yield _Pages(opened)


class _Pages:
    def __init__(self, page: Page) -> None:
        self._page = page

    async def __call__(self, step: str, **given: Any) -> Any:
        return await self._page.evaluate("([step, given]) => perform(step, given)", [step, given])


_BUNDLE: Final = """
const [esbuild, entry] = process.argv.slice(1);
require(esbuild).build({
  entryPoints: [entry], bundle: true, format: "iife", target: "es2022", write: false,
}).then(made => process.stdout.write(made.outputFiles[0].text));
"""
