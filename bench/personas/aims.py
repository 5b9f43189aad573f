"""What the project set out to reach, beside what its default has reached in the rows so far.

The aims stand in the words of the issue that set them; how far below the hinted base's an nll may
be is not asked. What the hinted base itself cannot do is not asked of its student, but shown in the
means.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from bench.personas.pairs import gap
from bench.personas.recipes import RECIPES, SERVED, THUMBS_SERVED
from bench.personas.rows import (
    AT_ONCE,
    DEFAULT,
    FOURS,
    REACHABLE,
    Cells,
    Race,
    are_alike,
    base_share,
    grid,
    kept_of_question,
    last,
    lasts,
    middle,
    of,
    people_of,
    question_shares,
    races,
    unseen,
    values,
    well_served,
)
from bench.personas.stages import (
    BEST,
    FIRST_SEED,
    JUDGED_AT,
    methods,
    told_answers,
    variations,
)
from bench.personas.thumbs import chance, chance_of_seeds, gains, gains_of, of_thumbs_alone
from training.config import TrainConfig

SATISFIED = ((16, 0.90), (32, 0.95))  # (rated turns, mean share satisfied)
NLL_ABOVE = 0.15  # the hinted base's, nats per token
SOONER = 0.5  # of the turns that upstream's best needs
LIKELY = 0.05  # p of the bootstrap
HOW = {  # who is meant, as the aim's line says it
    DEFAULT: "",
    SERVED: " as `make run` serves it",
    THUMBS_SERVED: " as `make run` serves it, by thumbs alone",
}
UNHEARD = "; by thumbs alone each verdict is the same: the hints go unheard (docs/decisions/0039)"
BATCH = RECIPES[DEFAULT].batch  # ratings per version
ENOUGH = 3  # seeds
OF_QUESTION = TrainConfig().gate_question_min  # of what was asked in the base's own replies
BETWEEN = (0.1, 0.9)  # what the base keeps by itself of a wish that thumbs alone can teach


def aims(cells: Cells) -> list[str]:
    """A line for each aim; none where nothing of it has run."""
    reached = well_served(cells)
    rows = [
        *(_satisfied(cells, reached, turns, aim) for turns, aim in SATISFIED),
        _satisfied_of_question(cells, reached),
        *(_as_served(cells, reached, turns, aim) for turns, aim in SATISFIED),
        _nll(cells, reached),
        _drift([cell for cell in cells if cell["person"] in reached], "these people's last"),
        _drift(cells, "the same of everybody's: the last"),
        _drift_elsewhere(cells),
        _accepted(cells),
        _of_question(cells, DEFAULT),
        _of_question(cells, SERVED),
        *_leaks(cells),
        _sooner(cells),
        *_thumbs(cells),
        _thumbs_served(cells),
        _winner(cells),
    ]
    kept = [row for row in rows if row]
    said = [
        f"The aims, and what `{DEFAULT}`, the default, reaches. Each person's figure is the median",
        f"over seeds; on fewer than {ENOUGH} none is met. Means are over the people whose wish",
        f"the hinted base keeps in {REACHABLE} or more ({', '.join(reached) or 'nobody yet'}).",
        "Why some are missed: docs/LOG.md, Why aims are missed.",
    ]
    return [*said, "", *grid(["aim", "reached", "met"], kept)] if kept else []


def _met(is_met: bool) -> str:
    return "yes" if is_met else "**no**"


def _satisfied(cells: Cells, people: Sequence[str], turns: int, aim: float) -> list[str]:
    each = _each(cells, people, turns, "satisfied")
    return _of_means(f"satisfied after {turns} rated turns: {aim:.2f}", each, people, aim)


def _satisfied_of_question(cells: Cells, people: Sequence[str]) -> list[str]:
    """The last of these once more, by replies that answer what was asked."""
    turns, aim = SATISFIED[-1]
    ran = of(cells, recipe=DEFAULT)
    found = {
        p: [both[1] for c in of(ran, person=p) if (both := kept_of_question(c, turns))]
        for p in people
    }
    each = _medians(found)
    words = f"the same after {turns} by replies of their question (below): {aim:.2f}"
    return _of_means(words, each, people, aim)


def _as_served(cells: Cells, people: Sequence[str], turns: int, aim: float) -> list[str]:
    """What the product's jobs make of all of them by then, on questions never tuned on."""
    found = {
        p: [s for c in of(cells, recipe=SERVED, person=p) if (s := unseen(c, turns)) is not None]
        for p in people
    }
    each = _medians(found)
    words = f"satisfied after {turns} as `make run` serves it (`{SERVED}`, below): {aim:.2f}"
    return _of_means(words, each, people, aim)


def _of_means(
    words: str, each: Mapping[str, tuple[float, int]], people: Sequence[str], aim: float
) -> list[str]:
    """`each`: of a person the share, and on how many seeds."""
    if not each:
        return []
    mean = statistics.fmean(share for share, _ in each.values())
    shown = ", ".join(f"{person} {share:.2f}{_few(n)}" for person, (share, n) in each.items())
    return [words, f"{mean:.3f} ({shown})", _met(mean >= aim and _are_enough(each, people))]


def _few(seeds: int) -> str:
    """How many, where they are too few."""
    return "" if seeds >= ENOUGH else f" on {seeds} seed{'s' * (seeds > 1)}"


def _are_enough(each: Mapping[str, tuple[float, int]], people: Sequence[str]) -> bool:
    return all(person in each and each[person][1] >= ENOUGH for person in people)


def _each(
    cells: Cells, people: Sequence[str], turns: int, name: str
) -> dict[str, tuple[float, int]]:
    """Of those that ran so long, person by person: the median over seeds, and how many."""
    found = {p: values(of(cells, person=p, recipe=DEFAULT), turns, name) for p in people}
    return _medians(found)


def _medians(found: Mapping[str, Sequence[float]]) -> dict[str, tuple[float, int]]:
    """Of those that have any, person by person: the median over seeds, and how many."""
    return {person: (statistics.median(each), len(each)) for person, each in found.items() if each}


def _nll(cells: Cells, people: Sequence[str]) -> list[str]:
    """At the last of the turns at which shares are asked for."""
    turns = SATISFIED[-1][0]
    above = {}
    for person, (nll, seeds) in _each(cells, people, turns, "nll").items():
        hinted = middle(values(of(cells, person=person, recipe="hinted"), 0, "nll"))
        if hinted is not None:
            above[person] = nll - hinted, seeds
    if not above:
        return []
    shown = ", ".join(f"{person} {gap:+.2f}{_few(n)}" for person, (gap, n) in above.items())
    words = f"nll after {turns} within {NLL_ABOVE} of the hinted base's, or lower"
    is_met = all(gap <= NLL_ABOVE for gap, _ in above.values())
    return [words, shown, _met(is_met and _are_enough(above, people))]


def _drift(cells: Cells, whose: str) -> list[str]:
    gates = [cell["gate"] for cell in of(cells, recipe=DEFAULT) if cell["gate"]]
    if not gates:
        return []
    within = sum(map(_is_near, gates))
    words = f"{whose} versions' drift at most the hinted base's own + 0.05"
    return [words, f"{within} of {len(gates)}", _met(within == len(gates))]


def _is_near(gate: Mapping[str, float]) -> bool:
    """Rows hold the drift rounded to three digits, older ones the limit with all of its own."""
    return gate["drift"] <= round(gate["drift_limit"], 3)


def _drift_elsewhere(cells: Cells) -> list[str]:
    """The way back ends at the limit of the gate's own prompts: of others it never knew."""
    rows = [c for name in (DEFAULT, SERVED) for c in of(cells, recipe=name)]
    gates = [c["gate"] for c in rows if c["gate"] and "drift_elsewhere" in c["gate"]]
    if not gates:
        return []
    within = sum(gate["drift_elsewhere"] <= gate["drift_elsewhere_limit"] for gate in gates)
    words = "the same on questions of a kind that no version was moved back by"
    return [words, f"{within} of {len(gates)} that measured it", _met(within == len(gates))]


def _leaks(cells: Cells) -> list[list[str]]:
    """Of people whose wish is about one kind of request, after the turns that all were asked after,
    of those that shares are asked for; or after their last."""
    rows, marks = [], [str(turns) for turns, _ in SATISFIED]
    groups = {
        recipe: [cell for cell in of(cells, recipe=recipe) if "rest" in cell["evals"]["0"]]
        for recipe in HOW
    }
    alike = are_alike(groups[SERVED], groups[THUMBS_SERVED])
    for recipe, group in groups.items():
        if not group or (alike and recipe == THUMBS_SERVED):
            continue
        asked = [turns for turns in marks if all(turns in cell["evals"] for cell in group)]
        ends = asked or [min(map(last, group), key=int)]
        but = UNHEARD if alike and recipe == SERVED else ""
        rows += [_leak(group, turns, HOW[recipe], but) for turns in ends]
    return rows


def _leak(group: Cells, turns: str, how: str, but: str) -> list[str]:
    """Is either kind kept less than before, in the mean of the seeds or on one of them?"""
    seeds = [[cell] for cell in sorted(group, key=lambda cell: cell["seed"])]
    shown, lost, asked = [], [], 0
    for kind in ("recipes", "the rest"):
        mean, *of_seeds = (
            gains_of(each, turns, recipes=kind == "recipes") for each in (group, *seeds)
        )
        p, *by_seed = map(_lost, (mean, *of_seeds))
        lost += [p, *(min(1.0, len(seeds) * each) for each in by_seed)]
        gained = [
            f"{statistics.fmean(changes):+.3f} ({each:.3f})"
            for changes, each in zip(of_seeds, by_seed, strict=True)
        ]
        told = f"{statistics.fmean(mean):+.3f} (p of a loss {p:.3f}; by seed {', '.join(gained)})"
        shown.append(f"{kind} {told}")
        asked += len(mean)
    words = (
        f"after {turns}{how} no leak of a wish about recipes into other requests is shown: no loss"
        f" with p < {LIKELY}, nor on one of n seeds with p < {LIKELY} / n"
    )
    reached = f"{', '.join(shown)}, {asked} questions, {len(group)} seeds{but}"
    return [words, reached, _met(min(lost) >= LIKELY and len(group) >= ENOUGH)]


def _lost(changes: Sequence[float]) -> float:
    """How likely it is by chance that they lose nothing."""
    return chance([-change for change in changes])


def _accepted(cells: Cells) -> list[str]:
    tested = [cell for cell in of(cells, recipe=DEFAULT) if cell["gate"]]
    if not tested:
        return []
    refused = sorted({cell["person"] for cell in tested if not cell["gate"]["accepted"]})
    words = "no person's replies degenerate: the gate accepts the last versions"
    count = sum(cell["gate"]["accepted"] for cell in tested)
    but = f", not {', '.join(refused)}" if refused else ""
    if far := sum(not _is_near(cell["gate"]) for cell in tested):
        but += f"; {far} of these for their drift"
    if before := sum("question" not in cell["gate"] for cell in tested):
        but += f"; {before} from before the gate asked whether replies are of the question"
    return [words, f"{count} of {len(tested)}{but}", _met(not refused)]


def _of_question(cells: Cells, recipe: str) -> list[str]:
    """The gate asks this of neutral prompts; here it is asked of the person's own kind."""
    shares = question_shares(cells, recipe)
    if not shares:
        return []
    lost = [person for person, share in shares if share < OF_QUESTION]
    words = (
        f"no person's replies degenerate{HOW[recipe]}: held-out replies have {OF_QUESTION} of the"
        " question or more, the base's having 1"
    )
    said = ", ".join(f"{person} {lost.count(person)}" for person in dict.fromkeys(lost))
    count = f"{len(shares) - len(lost)} of {len(shares)} that measured it"
    hinted = [share >= OF_QUESTION for _, share in question_shares(cells, "hinted")]
    beside = f"; of the hinted base's own {sum(hinted)} of {len(hinted)}" if hinted else ""
    return [words, f"{count}{f', not {said}' if said else ''}{beside}", _met(not lost)]


def _sooner(cells: Cells) -> list[str]:
    """Over the people on whom both ran, on whom either ever had three in a row, and not both by the
    base itself."""
    met, missed, unknown, untaught, never = [], [], [], [], []
    behind = set()
    for race in races(cells):
        if race.is_open:
            never.append(race.person)
        elif race.is_untaught:
            untaught.append(_ratio(race))
        elif race.most <= SOONER and len(race.ours) >= ENOUGH:
            met.append(_ratio(race))
        elif race.least > SOONER:
            missed.append(_ratio(race))
            behind.add(race.person)
        else:
            unknown.append(_ratio(race))
    count = len(met) + len(missed) + len(unknown)
    if not count:
        return []
    words = f"rated turns until three in a row: {SOONER} of upstream's best or less"
    soonest = f"a first version comes after {BATCH}, so {BATCH + 3} is its soonest"
    at_once, by_fours = (
        [_ratio(race) for race in races(cells, name) if race.person in behind]
        for name in (AT_ONCE, FOURS)
    )
    others = [
        ("not", missed),
        (f"{soonest}; while hints in the prompt hold until then (`{AT_ONCE}`):", at_once),
        (f"with a version after every fourth (`{FOURS}`):", by_fours),
        ("not known:", unknown),
        ("not counted, as both had them before their first version:", untaught),
        ("nor where neither has had them so far:", never),
    ]
    but = "".join(f"; {which} {', '.join(found)}" for which, found in others if found)
    shown = f" ({', '.join(met)})" if met else ""
    return [words, f"{len(met)} of {count} people{shown}{but}", _met(len(met) == count)]


def _ratio(race: Race) -> str:
    return f"{race.person} {race.said}{_few(len(race.ours))}"


def _thumbs(cells: Cells) -> list[list[str]]:
    """Each person's best recipe of ours that learns from thumbs alone, with all seeds that ran."""
    rows, are_asked_for = [], bool(of_thumbs_alone(cells))  # of anybody
    for person in people_of(cells):
        base = base_share(cells, person)
        if base is None or not BETWEEN[0] <= base <= BETWEEN[1]:
            continue
        groups = of_thumbs_alone(of(cells, person=person))
        groups = {name: group for name, group in groups.items() if not name.startswith("TRL")}
        if not groups:
            if are_asked_for:
                rows.append([_of_thumbs(person, base), "not run", _met(False)])
            continue
        name, differences = max(
            ((name, gains(group)) for name, group in groups.items()),
            key=lambda pair: (len(groups[pair[0]]), statistics.fmean(pair[1])),
        )
        p = min(1.0, len(groups) * chance(differences))  # the best of so many (Bonferroni)
        gain = statistics.fmean(differences)
        turns = lasts(groups[name])
        asked = f"{len(differences)} questions, {len(groups[name])} seeds{_refused(groups[name])}"
        runs = f" ({chance_of_seeds(groups[name]):.3f} with seeds resampled, too)"
        shown = f"`{name}` {gain:+.3f} after {turns}, p {p:.4f}{runs}, {asked}"
        is_met = p < LIKELY and len(groups[name]) >= ENOUGH
        rows.append([_of_thumbs(person, base), shown, _met(is_met)])
    return rows


def _thumbs_served(cells: Cells) -> list[str]:
    """What the product's jobs make of thumbs alone, of everybody who ran."""
    group = of(cells, recipe=THUMBS_SERVED)
    shown, is_met = [], True
    for person in people_of(group):
        ran = of(group, person=person)
        differences = gains(ran)
        gain, p = statistics.fmean(differences), chance(differences)
        shown.append(f"{person} {gain:+.3f} after {lasts(ran)}, p {p:.4f}{_few(len(ran))}")
        is_met &= p < LIKELY and len(ran) >= ENOUGH
    words = f"the same as `make run` serves it (`{THUMBS_SERVED}`, below)"
    return [words, "; ".join(shown), _met(is_met)] if shown else []


def _refused(group: Cells) -> str:
    count = sum(cell["gate"] is not None and not cell["gate"]["accepted"] for cell in group)
    return f", of which the gate refuses the last version of {count}" if count else ""


def _of_thumbs(person: str, base: float) -> str:
    return f"thumbs alone above the base, p < {LIKELY}: {person} (base {base:.2f})"


def _winner(cells: Cells) -> list[str]:
    """By what the first stage is for, and by all pairs with the nearest of the others."""
    means = methods(of(cells, seed=FIRST_SEED))
    if DEFAULT not in means:
        return []
    words = f"the default is the winner of the first stage, after {JUDGED_AT} rated turns"
    ranked = sorted(means, key=lambda name: -means[name])
    shown = _means_said({name: means[name] for name in ranked[:BEST]})
    if told := told_answers(of(cells, seed=FIRST_SEED)):
        shown += f"; not ranked, as their person also writes the answer: {_means_said(told)}"
    if varied := variations(of(cells, seed=FIRST_SEED), at_least=means[DEFAULT]):
        shown += f"; of its variations as high or higher: {_means_said(varied)}"
    is_met = means[DEFAULT] == max(means.values())
    nearest = next((name for name in ranked if name != DEFAULT), None)
    if nearest and (found := gap(cells, nearest, JUDGED_AT, alike=True)):
        shown += f"; {found.pairs} pairs with `{nearest}` that differ in nothing else: {found}"
        if not found.is_told_apart:
            return [words, shown, "highest, not told apart" if is_met else "**not told apart**"]
        is_met &= found.mean > 0
    return [words, shown, _met(is_met)]


def _means_said(means: Mapping[str, float]) -> str:
    return ", ".join(f"`{name}` {mean:.3f}" for name, mean in means.items())
