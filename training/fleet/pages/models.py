"""The page of models: compares models that were judged on the same test."""

from urllib.parse import urlencode

from training.fleet.pages.page_request import PageRequest
from training.fleet.pages.rendering import Frame, render
from training.fleet.service.guards import refuse_host
from training.fleet.wire import results

ROWS_MAX = 50
HOSTS_MAX = 12  # columns of rotations


def page(asked: PageRequest, frame: Frame) -> str:
    """Render a page of the models judged on one test, by default the test on which most of the plan's models were
    judged. A training host's request is refused."""
    refuse_host(asked.host, "all models")
    test, after = asked.query.get("test"), asked.query.get("after", "")
    reply = asked.views.models.models(test=test, after=after, limit=ROWS_MAX).to_dict()
    chosen = reply["test"]
    whole = max((each["models"] for each in reply["tests"] if each["test"] == chosen), default=0)
    return render(
        "models.html",
        frame,
        which="" if after else results.which(reply["models"]),
        sentence=results.ranking(reply["models"], whole) if not after else "Further models judged on the same test.",
        beliefs=results.beliefs(reply["models"]),
        models=reply["models"],
        rotations=reply["rotations"],
        rotated_hosts=results.rotated_hosts(reply["rotations"], HOSTS_MAX),
        tests=[(address(each["test"]), each) for each in reply["tests"]],
        test=chosen,
        without=reply["without"],
        without_jobs=reply["without_jobs"],
        following=address(chosen, reply["next_after"]) if reply["next_after"] else None,
        tied=any(each["standing"] == "tied" for each in reply["models"]),
    )


def address(test: str, after: str = "") -> str:
    """Return the address of a test's models."""
    return f"/models?{urlencode({'test': test} | ({'after': after} if after else {}))}"
