"""The rules of laggard.locate that can be switched off, in the order in which a verdict asks them.

`where` names a function; `off` is what it then returns, or what stands in place of `part`. A rule that is the measure
itself stands in CORE, with the reason why it has no neutral answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ablation.switch import Rule

READING: Final = (
    Rule("peers by place", "positions:position_classes", "np.zeros(len(indices), np.int32)"),
    Rule("peers by place: shown by collectives", "positions:indices_shown_by", "{}"),
    Rule("peers by place: sends one way are no pipeline", "positions:_both_ways", "ways",
         "{way for way in ways if way[::-1] in ways}"),
)  # fmt: skip
"""These act while a recording is read: it is read anew without them."""

STEPS: Final = (
    Rule("phases must be named", "slow.steps:_are_named", "True"),
    Rule("recording begins with its processes", "slow.steps:_first_judged", "WARM_UP_STEPS"),
    Rule("stalls do not count", "slow.steps:Steps.stalled", "np.zeros_like(self.duration, np.bool_)"),
    Rule("lone stage grows with the others", "slow.steps:Past.excess", "self.base",
         "self.base * grown / np.fmin(median_over_steps(grown), 1.0)"),
    Rule("crowded machine has peers elsewhere", "slow.steps:_apart", "()"),
    Rule("crowded machine: not two of four", "slow.steps:_apart", "True",
         "(others > 2) | (2 * (size - 1) >= count[which] - 1)"),
)  # fmt: skip

PLACES_OF_WORK: Final = (
    Rule("work by place", "slow.by_place:by_place", "ByPlace(steps)"),
    Rule("work by place: alike in a place", "slow.by_place:_uneven", "False",
         "(deviation <= 1 - MOST).mean() < MOST"),
    Rule("work by place: or the machine", "slow.by_place:_have_machines_to_themselves", "False"),
    Rule("work by place: blames the machine", "slow.by_place:_blames_machine", "False"),
    Rule("work by place: passes since the first step", "slow.by_place:_blames_machine", "False",
         "not by_design.sum() > HALF * now.sum()"),
    Rule("work by place: tensor groups' passes", "slow.by_place:_is_of_equal_parts", "False"),
    Rule("work by place: slow update", "slow.by_place:_blames_machine", "False",
         "is_slower_at_update(steps, heavy, light)"),
)  # fmt: skip

TESTED: Final = (
    Rule("parts of the window", "slow.tested:parts_of", "[Part(0, steps)]"),
    Rule("moments", "slow.tested:_Test._of_moments", "(0.0, 0.0)"),
    Rule("moments: shorter blocks in few seconds", "slow.tested:_Test.__init__", "MOMENT_SECONDS",
         "min(MOMENT_SECONDS, len(relative) * step / PARTS)"),
    Rule("noise: of two neither tells", "slow.tested:_compared", "units.judged",
         "units.judged if units.tells is None or (units.judged & units.tells).sum() <= FEW else units.tells"),
    Rule("noise: what was before", "slow.tested:_Test._beside_others", "0",
         "part.begin - gap if part.begin - gap >= MIN_STEPS else 0"),
    Rule("noise: none across the bounds of a part", "slow.tested:_Test._within", "self._blocks"),
    Rule("noise: levels that need a cause", "slow.tested:_Test._beside_others", "0.0",
         "of_noise.ever * self._count / self._in_all"),
    Rule("noise: spread of levels", "slow.tested:_Test._beside_others", "Spread()",
         "spread_of(levels[others]) if len(others) > 1 else Spread()"),
    Rule("half for the window as a whole", "slow.tested:_Test.found", "self._count * len(parts)",
         "2 * self._count * (1 if length == steps else len(parts) - 1)"),
    Rule("a stalled peer is ahead by a step at most", "slow.tested:judge", "_known(units.excess) / step",
         "np.maximum(_known(units.excess) / step, -MAX_AHEAD)"),
    Rule("doubted: unknown", "slow.tested:_Test._beside_others", "False",
         "unlikely and cost >= DOUBTED_COST and not self._live"),
    Rule("doubted: in most steps is no moment", "slow.tested:_Test._beside_others", "of_moments",
         "0.0 if lasts else of_their_length"),
)  # fmt: skip

RANKS: Final = (
    Rule("machine in place of its ranks", "slow.ranks:_slow_machine", "[]"),
    Rule("machine: most ranks have half", "slow.ranks:_slow_machine", "True",
         "(np.nansum(own, axis=0) > half * np.isfinite(own).sum(axis=0)).mean() >= MOST"),
    Rule("machine: ranks with the same work", "slow.ranks:_of_machines", "[]",
         "[left[part] for part in parts if 1 < len(part) < len(several)]"),
    Rule("machine: its ranks merged", "slow.ranks:_by_machine", "list(found)"),
    Rule("peers without culprits", "slow.ranks:_disturbed", "np.zeros(len(steps.peers.number), np.bool_)"),
    Rule("two speeds: unknown", "slow.ranks:_fast_ranks", "()"),
    Rule("now and then", "slow.ranks:_slow", "None", "None if steady else hit"),
    Rule("from when to when", "slow.ranks:_described", "found.part"),
    Rule("is waited for", "slow.ranks:is_waited_for", "True"),
    Rule("experts by passes and update", "slow.uneven_work:slow_at_their_own_experts", "(steps, [])"),
    Rule("experts: passes and update", "slow.uneven_work:_is_slower", "True"),
    Rule("time in no phase: note", "slow.doubts:slow_in_no_phase", "[]"),
)  # fmt: skip

KINDS: Final = (
    Rule("must save 1 %", "slow.culprits:slow_culprits", "True", "_is_worth_it(steps, each, share * len(slow))"),
    Rule("must save 1 %: as far as that is known", "slow.culprits:slow_culprits", "True",
         "replayed or len(steps.peers.classes) == len(steps.peers.classes[0]) == 1"),
    Rule("in a script's place", "slow.culprits:scripts_choice", "set()"),
    Rule("left to one rank", "slow.culprits:_kind", "False", "alone and chosen"),
    Rule("left to one rank: no phase is known", "slow.culprits:_kind", "False",
         "placed and not steps.phased and each.hits is not None"),
    Rule("more work by elements", "slow.uneven_work:more_work", "()"),
    Rule("more work by design is a note", "slow.uneven_work:is_by_design", "False"),
    Rule("facts of hosts", "slow.host_facts:with_host_facts", "tuple(culprits)"),
    Rule("CPU waits", "slow.host_facts:_Hosts.without_cpu", "None"),
    Rule("CPU waits: more than peers, as much as it costs", "slow.host_facts:_Hosts.without_cpu", "False",
         "missed.beyond(self._usual or _Missed()) < least"),
    Rule("busy threads", "slow.host_facts:_Hosts._without_lock", "culprit"),
    Rule("stall: note", "slow.culprits:stall_notes", "[]"),
    Rule("replay of ranks", "slow.culprits:_by_replay", "None"),
    Rule("replay: not where records lack", "slow.replay:_lacks_members", "False"),
    Rule("longest stage: unknown", "slow.steps:longest_stage_notes", "()"),
    Rule("kernels that wait", "verdict:_slow_ranks", "False", "timings.hidden_by"),
    Rule("waits that no hook sees", "verdict:_slow_ranks", "()", "timings.unseen_waits"),
    Rule("slow one may be missing: unknown", "slow.doubts:culprit_may_be_missing", "None"),
    Rule("profile of few ranks: less sure", "verdict:_less_sure", "culprit"),
    Rule("profile of few steps: hint", "slow.doubts:least_wait_notes", "()"),
    Rule("slow before it stopped", "verdict:_beside_stopped", "PartialVerdict(tuple(stopped))"),
)  # fmt: skip

LINKS: Final = (
    Rule("links: beside equal ones", "links.network:_by_equals", "InNetwork()"),
    Rule("links: no place covers them: note", "links.network:_by_equals", "True", "cost < MIN_COST_AT_TIMES"),
    Rule("links: must save 1 %", "links.network:_culprits", "True", "each[1] >= MIN_COST"),
    Rule("links: worth something together", "links.network:_culprits", "False",
         "len(places) > 1 and not any(saved >= MIN_COST for _, saved in worth)"),
    Rule("links: replay", "links.network:replayed", "None"),
    Rule("memory is no link", "links.channels:_ways_by", "categories",
         "[each for each in categories if not all(in_memory[number] for number in each.channels)]"),
    Rule("lost records of many members", "links.channels:_needed", "len(members) + (-1 in members)"),
    Rule("messages by receives alone", "links.channels:_copied", "None"),
    Rule("messages by themselves", "links.network:_by_equals", "None",
         "ways_of_messages(job.timings, job.steps.numbers) if not (is_slow or links) else None"),
    Rule("channel: stages by themselves", "links.raised:_expected", "()",
         "distinct(category.kinds).tolist() if category.kinds.any() else ()"),
    Rule("channel: ways back are not fast", "links.raised:_without_ways_back", "found"),
    Rule("place: way between machines", "links.places:_ways", "()"),
    Rule("place: rail", "links.places:_local", "np.zeros(len(machine), np.int64)"),
    Rule("place: switch", "links.places:_switches", "()"),
    Rule("place: within a machine", "links.places:_places", "()",
         "sorted({min(on[number]) for number in raised - crossing})"),
    Rule("place: group", "links.places:_places", "()", "sorted(raised)"),
    Rule("moved by CPUs", "links.network:_moved_by_cpus", "InNetwork(links=tuple(links))"),
    Rule("moved by CPUs: the host in place", "links.network:_host_of", "None"),
)  # fmt: skip

LATER_LINKS: Final = (
    Rule("slow for a time", "links.raised:changes", "()"),
    Rule("slow for a time: between two steps", "links.raised:_between_two_steps", "()"),
    Rule("slow for a time: again and again", "links.raised:_again_and_again", "()"),
    Rule("slow for a time: no rank's own time", "links.raised:_between_two_steps", "False",
         "np.nan_to_num(rise).max(initial=0.0) > HALF * median(excess[active])"),
    Rule("slow for a time: no noise", "links.raised:_chance", "0.0"),
    Rule("slow for a time: must cost enough", "links.raised:_again_and_again", "True", "cost >= MIN_COST_AT_TIMES"),
    Rule("slow for a time: one thing where it came seldom", "links.network:_in_change", "True",
         "change.known or places[0].is_one_thing"),
    Rule("slow for a time: not by chance", "links.raised:_longer_in", "False",
         "chance_of_share(int(hit.sum()), len(hit), int(hit.sum() + others.sum()), len(hit) + len(others))"
         " > ERRORS"),
    Rule("slow for a time: not queued", "links.network:_without_queued", "found"),
)  # fmt: skip

HANGS: Final = (
    Rule("hung before the end", "hang.hangs:hung_before_the_end", "NOTHING_FOUND"),
    Rule("hung before the end: may have waited", "hang.hangs:hung_before_the_end", "True",
         "len(timings.ranks) >= timings.world_size and all(state.step is not None for state in states)"),
    Rule("hung now", "hang.hangs:hung_ranks", "NOTHING_FOUND"),
    Rule("hung: job suspended", "hang.hangs:hung_ranks", "False", "stopped and len(stopped) == len(states)"),
    Rule("hung: left early", "hang.hangs:_left", "()"),
    Rule("hung: beside each other", "hang.wait_graph:_waits_in_the_world", "{}",
         "{column: own for column, own in front.items() if column in crossed and stands_in(own)}"),
    Rule("hung: device behind", "hang.wait_graph:behind_devices", "[]"),
    Rule("hung: device has not begun", "hang.wait_graph:_not_begun", "[]"),
    Rule("hung: deadlock", "hang.wait_graph:WaitGraph.circle", "frozenset()"),
    Rule("hung: different collectives of a group", "hang.hangs:standing_differently", "None"),
    Rule("hung: not before it took long", "hang.hangs:_Hang._hung_after", "0.0"),
    Rule("hung: not in a usual wait", "hang.hangs:_Hang._usual_wait", "0.0"),
    Rule("hung: silent to the end", "hang.hangs:_Hang._hung_after", "False", "self.ended and is_silent(state)"),
    Rule("waits by Flight Recorder", "hang.wait_graph:_waits_in_the_world", "{}"),
    Rule("waits: read since", "hang.wait_graph:was_read_since", "True"),
    Rule("waits: another message of a batch", "hang.wait_graph:Arrivals.standing", "(flight,)", "(flight, *batch)"),
    Rule("mismatched collectives", "hang.different_calls:mismatched_collectives", "NOTHING_FOUND"),
    Rule("different calls", "hang.different_calls:different_calls", "None"),
    Rule("different calls: each lacks something", "hang.different_calls:_first_difference",
         "len({call.kind for call in first.values()}) > 1",
         "any(less - more for less, more in itertools.pairwise(ways))"),
    Rule("never finished", "hang.unfinished:unfinished_operations", "NOTHING_FOUND"),
    Rule("never finished: went on from it", "hang.unfinished:open_collectives", "True", "seq >= done[key]"),
    Rule("never finished: in the last step", "hang.unfinished:_is_last", "np.ones(len(collectives.start), np.bool_)"),
    Rule("never finished: others wait for it", "hang.unfinished:_Unfinished._is_suspect", "True",
         "bool(ranks & self._graph.awaited)"),
    Rule("never finished: more than half", "hang.unfinished:_Unfinished.verdict", "True",
         "sum(len(each.ranks) for each in named) <= MAX_SHARE * len(self._by_rank)"),
    Rule("never finished: silent hosts", "hang.unfinished:_Unfinished._silent_hosts", "()"),
    Rule("never finished: in the most operations", "hang.unfinished:_suspicions", "()"),
    Rule("dumps of a running job", "hang.unfinished:_moving", "None"),
    Rule("older dumps", "hang.unfinished:_older_dumps", "None"),
    Rule("dumps: beside what went before", "hang.unfinished:_Unfinished._is_at", "launched in queue.first"),
)  # fmt: skip

DEATHS: Final = (
    Rule("stopped to the end", "hang.hangs:stopped_to_the_end", "NOTHING_FOUND"),
    Rule("deaths", "hang.deaths:dead_ranks", "NOTHING_FOUND"),
    Rule("death: order", "hang.deaths:Death.explains", "False"),
    Rule("death: silent before the others", "hang.deaths:Death.explains", "is_cause",
         "(is_cause and not self.quiet_seconds) or ((is_cause or self.lost) and self.precedes(other))"),
    Rule("death: those that waited", "hang.deaths:Death.explains", "False",
         "self.end is not None and not self.victim and other.waited_long"),
    Rule("death: explained by another", "hang.deaths:Death.explains", "False",
         "self.why < other.why and not other.precedes(self)"),
    Rule("death: killed while they waited", "hang.deaths:_Deaths._hung_before", "False"),
    Rule("death: left before", "hang.deaths:_Deaths._left_before", "()"),
    Rule("death: whole job ended", "hang.deaths:_Deaths._whole_job_ended", "False"),
    Rule("death: job was over", "hang.deaths:_Deaths._was_over", "False"),
    Rule("death: others got beyond it", "hang.deaths:lived_until",
         "[0 if state.step is None else state.step for state in timings.states]"),
    Rule("death: waited for another", "hang.deaths:_Deaths._elsewhere", "False",
         "awaited and not awaited & {int(timings.ranks[death.column]) for death in self.deaths}"),
    Rule("death: first is unseen", "hang.deaths:_Deaths._elsewhere", "False",
         "unknown or len(timings.states) < timings.world_size"),
    Rule("death: aborted beside another call", "hang.deaths:beside_abort", "None"),
    Rule("death: called otherwise", "hang.deaths:_Deaths._called_otherwise", "self.first"),
    Rule("death: stuck long before", "hang.deaths:_Deaths.__init__", "False", "stood and others == {Why.FOR_OTHERS}"),
    Rule("death: machine went down", "hang.deaths:_Deaths._culprits", "(death,)",
         "tuple(self.down.get(death.node, (death,)))"),
)  # fmt: skip

STACKS: Final = (
    Rule("hung by stacks", "stacked:hung_by_stacks", "()"),
    Rule("late by arrivals", "slow.last_arrivals:_culprits", "()"),
)  # fmt: skip

CORRUPT: Final = (
    Rule("corrupt", "partial_verdict:corrupt_ranks", "NOTHING_FOUND"),
    Rule("corrupt: never agreed", "partial_verdict:_replicas", "place_of[rank]",
         "(place_of[rank], next(iter(told[rank].items())))"),
    Rule("corrupt: nobody knows who", "partial_verdict:_judged", "True",
         "2 * most > len(group) and all(count == 1 for _, count in others)"),
)  # fmt: skip

RULES: Final[tuple[Rule, ...]] = (
    *READING, *STEPS, *PLACES_OF_WORK, *TESTED, *RANKS, *KINDS, *LINKS, *LATER_LINKS, *HANGS, *DEATHS, *STACKS,
    *CORRUPT,
)  # fmt: skip

CORE: Final[Mapping[str, str]] = {
    "slow.steps:Steps.usable": "the steps that everything is judged by",
    "slow.steps:steps_needed": "a number in the words of a note",
    "slow.ranks:slow_ranks": "the measure itself: without it no rank is slow",
    "slow.culprits:slow_culprits": "describes who was found",
    "slow.culprits:doubted_notes": "words of who is doubted, and of two speeds",
    "slow.culprits:stalls_beside": "the stalls of the rule that leaves them out",
    "slow.doubts:missing_ranks_notes": "says which ranks are seen",
    "slow.doubts:unnamed_time_note": "words of time in no phase",
    "links.network:in_network": "asks the questions about links, each of which is a rule",
    "explanation:explained": "advice and findings; no verdict hangs on them",
    "medians:middle": "arithmetic",
}
"""The functions that a verdict calls and that are no rule, each with the reason."""
