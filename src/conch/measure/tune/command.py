"""`conch tune`: find the configuration of a model on a running server that serves best, by measuring."""

from collections.abc import Sequence

from conch.base.command_line.say import say
from conch.base.errors import ConchError
from conch.measure.tune.knobs import KnobError
from conch.measure.tune.planning import BudgetTooShort
from conch.measure.tune.repository_client import RepositoryClient, ServerRefusal, ServerUnreachable
from conch.measure.tune.state.folder import StateFolder
from conch.measure.tune.state.session import TuningInProgress
from conch.measure.tune.tune_settings import FlagError, TuneFlags, read_flags, tune_parser

_FAILURE, _INTERRUPTED = 1, 130


def tune(arguments: Sequence[str]) -> int:
    """Tune a model, or restore, or roll back. Returns the exit status."""
    parser = tune_parser()
    flags = read_flags(parser, arguments)
    from conch.measure.tune.tuning_run import run

    try:
        if flags.restore:
            return _restore(flags)
        if flags.repository is not None and not flags.repository.is_dir():
            parser.error(f"--repository: '{flags.repository}' is not a folder; expected the server's model repository")
        settings = flags.settings()
        return _roll_back(flags, settings.model) if flags.rollback else run(flags, settings)
    except (BudgetTooShort, FlagError, KnobError) as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        return _INTERRUPTED
    except (ConchError, ServerRefusal, ServerUnreachable, TuningInProgress, RuntimeError, ValueError, OSError) as error:
        say(f"conch tune: {error}")
        return _FAILURE


def _restore(flags: TuneFlags) -> int:
    """Restore all models that killed runs have left, or those of one model and URL."""
    from conch.measure.tune.state.saved_state import restore, saved_state

    directory = flags.state_directory()
    failures: list[str] = []
    count = 0
    for path in sorted(directory.glob("*/restore.json")):
        folder = StateFolder(path.parent)
        saved = saved_state(folder)
        if saved is None or (flags.model is not None and saved.model != flags.model):
            continue
        count += 1
        if not folder.lock():
            failures.append(f"model '{saved.model}': process {saved.pid} works on it")
            continue
        access = saved.access if flags.url is None else flags.access()
        try:
            failures += restore(RepositoryClient(access), folder, saved, say)
        except (ServerUnreachable, OSError) as error:
            failures.append(f"model '{saved.model}': {error}")
        finally:
            folder.unlock()
    for failure in failures:
        say(failure)
    if not count:
        say(f"nothing to restore in {directory}")
    return _FAILURE if failures else 0


def _roll_back(flags: TuneFlags, model: str) -> int:
    from conch.measure.tune.state.applied import read_applied, roll_back

    access = flags.access()
    folder = StateFolder.of(flags.state_directory(), access.url, model)
    change = read_applied(folder)
    if change is None:
        say(f"nothing was applied to model '{model}' of {access.url}")
        return _FAILURE
    for line in roll_back(RepositoryClient(access), folder, change):
        say(line)
    return 0
