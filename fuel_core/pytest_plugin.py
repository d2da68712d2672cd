"""The pytest plugin of the conformance kit. Every pytest run where fuel is installed imports it, so it lies
outside of the kit, which imports torch."""

import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from fuel_core.testing.oracle import OracleLogits

pytest.register_assert_rewrite(
    "fuel_core.testing.bundled",
    "fuel_core.testing.checks",
    "fuel_core.testing.conformance",
    "fuel_core.testing.published",
)


@pytest.fixture(scope="session")
def fuel_oracles(tmp_path_factory: pytest.TempPathFactory) -> "OracleLogits":
    """What transformers says of tiny configs, asked once a session."""
    from fuel_core.testing.oracle import OracleLogits

    return OracleLogits(tmp_path_factory.mktemp("oracles"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("fuel").addoption(
        "--fuel-update-goldens",
        action="store_true",
        help="Write the goldens of fuel's conformance tests instead of comparing with them.",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a conformance test over the tiny configs, core mutations or own mutations of its family."""
    if "fuel_core.testing" not in sys.modules or metafunc.cls is None:
        return  # nobody can have inherited from it
    from fuel_core.testing import Conformance

    if issubclass(metafunc.cls, Conformance):
        for name in {"tiny", "core_mutation", "family_mutation"} & set(metafunc.fixturenames):
            metafunc.parametrize(name, metafunc.cls.parameters(name))
