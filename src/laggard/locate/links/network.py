"""Decides which places in the network make transfers slow: each question about channels is asked where those before it
found nothing that is worth something. Pure.

A channel (a process group, or a pair of ranks) is raised where its transfers take longer than they should (raised.py).
The culprit is the smallest place that covers what is raised (places.py), and the replay says what its repair saves.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from laggard.kit.words import counted, ranks_text, seconds_text
from laggard.locate.collectives import SEND, Collectives
from laggard.locate.job_timings import JobTimings
from laggard.locate.links.channels import ROUND_TRIP_ROLE, Channel, Ways, ways_of, ways_of_messages
from laggard.locate.links.places import PLACES, Explanation, explain
from laggard.locate.links.raised import (
    BY_BLOCKED,
    BY_EQUALS,
    BY_FASTEST,
    MIN_COST_AT_TIMES,
    Change,
    Findings,
    Raised,
    changes,
    raised_among,
    raised_in,
)
from laggard.locate.medians import median, middle
from laggard.locate.shares import MIN_COST, MOST
from laggard.locate.slow.host_facts import are_starved, as_slow_host
from laggard.locate.slow.replay import Replay
from laggard.locate.slow.steps import Steps, node_numbers
from laggard.locate.slow.tested import confidence
from laggard.model import MAX_NAMED_RANKS, Culprit, Note

MAX_PLACES: Final = 4
"""The most places that are named at once."""

MAX_TOLD_RATIO: Final = 1000.0
"""The largest ratio that is told: equal transfers may take next to no time where they hide behind work."""

_NO_PLACE: Final = "no place in the network explains which do"

SLOWER_SINCE, SLOWER_AT_TIMES, SLOW_TRANSFERS = "slower_since", "slower_at_times", "slow_transfers"


class InNetwork(NamedTuple):
    """The slow links, and the `hosts` whose CPUs move the data of links that seem to be slow."""

    hosts: tuple[Culprit, ...] = ()
    links: tuple[Culprit, ...] = ()
    notes: tuple[Note, ...] = ()


class _Job(NamedTuple):
    """What the questions are about."""

    timings: JobTimings
    steps: Steps
    ways: Ways


def in_network(timings: JobTimings, steps: Steps, is_slow: bool, slow: Sequence[Culprit]) -> InNetwork:
    """What the transfers tell. `slow`: the ranks that are named; `is_slow`: whether any is slow, named or not: messages
    that wait for it come in other moments than usual."""
    job = _Job(timings, steps, ways_of(timings, steps.numbers))
    found = _by_equals(job, bool(is_slow or slow or timings.hidden_by))
    told = _moved_by_cpus(timings, found.links, slow)
    if told.hosts or told.links or slow or timings.hidden_by:
        return told
    answers = [*(_in_change(job, change) for change in changes(steps)), found._replace(links=()), told]
    named = (each for each in answers if each.hosts or each.links)
    return next(named, next((each for each in answers if each.notes), InNetwork()))


def _by_equals(job: _Job, is_slow: bool) -> InNetwork:
    """The places that are slow beside equal ones, by the first question that raises any channel; a note where none
    covers what is raised."""
    questions = (raised_among(job.ways, job.steps, question) for question in (BY_EQUALS, BY_FASTEST, BY_BLOCKED))
    found = next((each for each in questions if each.raised), Findings({}, frozenset()))
    links = _culprits(job, found)
    messages = ways_of_messages(job.timings, job.steps.numbers) if not (is_slow or links) else None
    if messages is not None:
        links = _culprits(job._replace(ways=messages), raised_among(messages, job.steps, BY_FASTEST))
    cost = max((each.excess for each in found.raised.values()), default=0.0) / middle(job.steps.duration)
    if links or cost < MIN_COST_AT_TIMES or _explained(job, found, MAX_PLACES):
        return InNetwork(links=links)
    text = f"{'; '.join(_lines(job, found.raised, None))}: {_NO_PLACE}"
    return InNetwork(notes=(Note(SLOW_TRANSFERS, text),))


def _culprits(job: _Job, found: Findings) -> tuple[Culprit, ...]:
    """The places of what is raised that are worth MIN_COST, the one that costs most first. All are told as one where
    none is by itself, as where several ranks share an adapter: the job waits for each."""
    places = _explained(job, found, MAX_PLACES)
    worth = [(each, _saved(job, found, each)) for each in places]
    if len(places) > 1 and not any(saved >= MIN_COST for _, saved in worth):
        all_places = tuple(place for each in places for place in each.places)
        together = Explanation(all_places, frozenset[int]().union(*(each.explained for each in places)))
        worth = [(together, _saved(job, found, together))]
    worth.sort(key=lambda each: -each[1])
    return tuple(_culprit(job, found, each, saved) for each, saved in worth if saved >= MIN_COST)


def _explained(job: _Job, found: Findings, most: int) -> list[Explanation]:
    """The places that explain what is raised, the one that explains most first; none where they leave too much."""
    left, places = found.raised, list[Explanation]()
    whole = sum(each.excess for each in left.values())
    while left and len(places) < most and (place := explain(job.timings, job.ways.channels, found)):
        places.append(place)
        left = {number: each for number, each in left.items() if number not in place.explained}
        found = found._replace(raised=left)
    return places if sum(each.excess for each in left.values()) <= (1 - MOST) * whole else []


def _saved(job: _Job, found: Findings, place: Explanation) -> float:
    """The share of the time that a repair saves: by the replay; where what was recorded cannot be replayed, by how much
    longer the slowest channel takes."""
    raised = {number: found.raised[number] for number in place.explained}
    since = min(each.since for each in raised.values())
    saved = None if _is_of_round_trips(job, raised) else replayed(job, raised)
    longer = max(each.excess for each in raised.values()) / middle(job.steps.duration[since:])
    return longer if saved is None else saved


def _is_of_round_trips(job: _Job, raised: Collection[int]) -> bool:
    """How much of these hides behind work is not known."""
    return any(job.ways.channels[number].role == ROUND_TRIP_ROLE for number in raised)


def replayed(job: _Job, raised: Mapping[int, Raised]) -> float | None:
    """The share of the step time that is saved where transfers through the raised channels take as long as they should;
    None where what was recorded cannot be replayed."""
    replay = Replay.of(job.timings, job.steps, min(each.since for each in raised.values()))
    if replay is None or job.timings.collectives is None:
        return None
    now, shares = replay.seconds(()), _shares(job, job.timings.collectives, raised, replay.rows)
    repaired = replay._replace(transfers=replay.transfers * shares)
    return float(np.clip((now - repaired.seconds(())) / max(now, replay.recorded), 0.0, 1.0))


def _shares(
    job: _Job, collectives: Collectives, raised: Mapping[int, Raised], rows: NDArray[np.int64]
) -> NDArray[np.float64]:
    """[M]: of the meetings of which `rows` [M] are records, the share of its time that each should take."""
    channels = job.ways.channels
    shares = {channels[it].group or channels[it].columns: 1 / each.ratio for it, each in raised.items()}
    found = np.array([shares.get(group.name, 1.0) for group in collectives.groups])[collectives.group[rows]]
    column, peer = collectives.column[rows], np.searchsorted(job.timings.ranks, collectives.peer[rows])
    for place in np.flatnonzero(collectives.peer[rows] >= 0).tolist():
        ends = int(column[place]), int(peer[place])
        found[place] = shares.get(ends if collectives.op[rows[place]] == SEND else ends[::-1], 1.0)
    return found


def _in_change(job: _Job, change: Change) -> InNetwork:
    """The place whose transfers take longer in the steps of the change than in the others. Where none covers what is
    raised, and where nothing recorded is, a note says so."""
    found = _without_queued(job, raised_in(job.ways, job.steps, change))
    if not found.raised:
        kind = SLOWER_SINCE if change.lasts else SLOWER_AT_TIMES
        is_told = change.known and change.cost >= MIN_COST_AT_TIMES
        text = f"{_when(job.steps, change)}: nothing recorded tells what they wait for"
        return InNetwork(notes=(Note(kind, text),) if is_told else ())
    places = _explained(job, found, 1)
    if not places:
        text = f"{'; '.join(_lines(job, found.raised, change))}; {_when(job.steps, change)}: {_NO_PLACE}"
        return InNetwork(notes=(Note(SLOW_TRANSFERS, text),))
    if not (change.known or places[0].is_one_thing):
        return InNetwork()
    return _moved_by_cpus(job.timings, (_culprit(job, found, places[0], change.cost, change),), ())


def _without_queued(job: _Job, found: Findings) -> Findings:
    """The findings without what is raised within several machines, where transfers between machines are as well: a
    collective that is launched behind a slow one takes longer, from its launch on, and is not slow itself."""
    machine, channels = node_numbers(job.timings.nodes), job.ways.channels
    machines = {number: set(machine[list(channels[number].columns)].tolist()) for number in found.raised}
    inside = {number: min(its) for number, its in machines.items() if len(its) == 1}
    if len(inside) == len(found.raised) or len(set(inside.values())) < 2:
        return found
    return found._replace(raised={number: each for number, each in found.raised.items() if number not in inside})


def _culprit(job: _Job, found: Findings, place: Explanation, saved: float, change: Change | None = None) -> Culprit:
    """The culprit that the places of an explanation are."""
    timings, channels = job.timings, job.ways.channels
    raised = {number: found.raised[number] for number in place.explained}
    columns = place.columns
    ranks = tuple(int(timings.ranks[column]) for column in columns)
    nodes = tuple(dict.fromkeys(filter(None, (timings.nodes[column] for column in columns))))
    since = min(each.since for each in raised.values())
    affected = {int(timings.ranks[column]) for number in raised for column in channels[number].columns}
    has_ends = len(place.places) == 1 and place.kind in ("way", "within", "group") and 0 < len(nodes) < 3
    sure = confidence(max(raised.values(), key=lambda each: each.excess).margin)
    through = f"{PLACES[place.kind]} {'one of ' if len(place.places) > 1 else ''}{ranks_text(ranks)}"
    if len(raised) > 1:
        through = f"all {counted(len(raised), 'slow channel')} go through {through}"
    return Culprit(
        kind="slow_link",
        ranks=ranks,
        node=nodes[0] if len(nodes) == 1 else None,
        link=({"node": nodes[0]}, {"node": nodes[-1]}) if has_ends else None,
        phase="collective",
        group=(channels[min(raised)].group or None) if len(raised) == 1 else None,
        slowdown_ratio=round(min(MAX_TOLD_RATIO, max(each.ratio for each in raised.values())), 3),
        recoverable_ratio=None if change is None and _is_of_round_trips(job, raised) else round(min(saved, 0.99), 3),
        since_step=int(job.steps.numbers[since]),
        persistence="persistent" if change is None or change.lasts else "intermittent",
        confidence=round(sure * (1.0 if place.is_one_thing else 0.5), 2),
        evidence=(*_lines(job, raised, change), through, *(() if change is None else (_when(job.steps, change),))),
        victims=tuple(sorted(affected - set(ranks))[:MAX_NAMED_RANKS]),
        nodes=nodes[:MAX_NAMED_RANKS] if len(nodes) > 1 else (),
    )


def _lines(job: _Job, raised: Mapping[int, Raised], change: Change | None) -> list[str]:
    """What the channels tell that cost most."""
    lines = []
    for number, each in sorted(raised.items(), key=lambda item: -item[1].excess)[:3]:
        channel = job.ways.channels[number]
        ratio = f"{each.ratio:.1f} times" if each.ratio < MAX_TOLD_RATIO else f"more than {MAX_TOLD_RATIO:.0f} times"
        others = "in the other steps" if change else f"those of equal {'groups' if channel.group else 'pairs'}"
        name = _channel_name(channel, job.timings)
        lines.append(f"{name}: transfers take {seconds_text(each.now)} a step, {ratio} as long as {others}")
    return lines


def _channel_name(channel: Channel, timings: JobTimings) -> str:
    if channel.group:
        return f"group {channel.group}"
    source, target = (f"rank {timings.ranks[column]}" for column in channel.columns)
    return f"between {source} and {target}" if channel.role == ROUND_TRIP_ROLE else f"from {source} to {target}"


def _when(steps: Steps, change: Change) -> str:
    usual, now = (seconds_text(median(steps.duration[those])) for those in (~change.active, change.active))
    first, last = steps.numbers[np.flatnonzero(change.active)[[0, -1]]].tolist()
    span = f"since step {first}" if change.lasts else f"from step {first} to {last}"
    count = f"{int(change.active.sum())} of {len(change.active)} steps are longer"
    return f"{count}, {span} ({now}, {usual} otherwise), and no rank's own work is"


def _moved_by_cpus(timings: JobTimings, links: Sequence[Culprit], slow: Sequence[Culprit]) -> InNetwork:
    """The links without those that the CPU of a slow rank explains, and the ranks whose threads wait for a CPU, each in
    place of a link. In a job without GPUs the CPUs move the data. Where both ends wait for one, a note says so."""
    if timings.profiled or any(timings.gpus):
        return InNetwork(links=tuple(links))
    known = {rank for culprit in slow for rank in culprit.ranks}
    kept, hosts, notes = list[Culprit](), list[Culprit](), list[Note]()
    for link in links:
        ends = {*link.ranks, *link.victims}
        if len(ends) == 2 and known & ends:
            continue
        found = _hosts_of(timings, link)
        if not found or (len(found) > 1 and not are_starved(timings, ends)):
            kept.append(link)
        elif len(found) > 1:
            notes.append(Note(SLOW_TRANSFERS, f"{link.evidence[0]}; both ends wait for a CPU: {found[0].evidence[0]}"))
        elif not known & set(found[0].ranks):
            known.update(found[0].ranks)
            hosts.append(found[0])
    return InNetwork(tuple(hosts), tuple(kept), tuple(notes))


def _hosts_of(timings: JobTimings, link: Culprit) -> list[Culprit]:
    """The ranks at an end of all slow transfers of the link whose threads wait for a CPU, each as a culprit."""
    ends = (*link.ranks, *(link.victims if len(link.ranks) == 1 == len(link.victims) else ()))
    return [host for rank in ends if len(ends) <= 2 and (host := as_slow_host(timings, rank, link))]
