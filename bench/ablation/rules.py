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
    Rule("peers by place: tensor mates below four", "positions:position_classes", "key",
         "stage if smallest[stage] < MIN_PEERS else key"),
    Rule("peers by place: shown by collectives", "positions:indices_shown_by", "{}"),
    Rule("peers by place: sends one way are no pipeline", "positions:_both_ways", "ways",
         "{way for way in ways if way[::-1] in ways}"),
)  # fmt: skip
"""These act while a recording is read: it is read anew without them."""

STEPS: Final = (
    Rule("phases must be named", "slow.steps:_are_named", "True"),
    Rule("stalls do not count", "slow.steps:Steps.stalled", "np.zeros_like(self.duration, np.bool_)"),
    Rule("lone stage beside its first steps", "slow.steps:_first_steps", "None"),
    Rule("lone stage grows with the others", "slow.steps:Past.excess", "self.base",
         "self.base * grown / np.fmin(median_over_steps(grown), 1.0)"),
    Rule("lone stage out of proportion", "slow.steps:in_proportion", "first, np.full(first.shape[1], -1)"),
    Rule("lone stage must save 2 %", "slow.culprits:_is_a_small_change", "False"),
    Rule("crowded machine has peers elsewhere", "slow.steps:_apart", "()"),
)  # fmt: skip

PLACES_OF_WORK: Final = (
    Rule("work by place", "slow.significance:by_place", "ByPlace(steps)"),
    Rule("work by place: or the machine", "slow.significance:_is_confounded", "False"),
    Rule("work by place: blames the machine", "slow.significance:_blames_machine", "False"),
    Rule("work by place: since the first step", "slow.significance:_blames_machine", "False",
         "not before.sum() > BEFORE_RATIO * now.sum()"),
    Rule("work by place: in the passes", "slow.significance:_blames_machine", "False",
         "steps.phased and now[list(_PASSES)].sum() < PASSES_SHARE * now.sum()"),
    Rule("work by place: slow update", "slow.significance:_has_slow_update", "False"),
    Rule("work by place: findings", "slow.significance:_blames_machine", "False",
         "any(has_cause(timings, node, machines, phase) for node in machines)"),
)  # fmt: skip

SIGNIFICANCE: Final = (
    Rule("shorter windows", "slow.significance:windows", "(steps,) if steps >= MIN_STEPS else ()"),
    Rule("still slow at the end", "slow.significance:slowdown", "False", "median(excess[-MIN_STEPS:]) <= typical / 2"),
    Rule("onset", "slow.significance:_onset", "0"),
    Rule("steps that are alike", "slow.significance:_alike", "1.0"),
    Rule("deviation known from few values", "slow.significance:student", "STANDARD_ERRORS"),
    Rule("own noise counts", "slow.significance:slowdown", "usual", "max(usual, MAD_TO_SIGMA * deviation(last))"),
    Rule("in most steps, so own noise does not", "slow.significance:_in_most_steps", "False"),
    Rule("spread of peers", "slow.significance:slowdown", "0.0", "SPREADS * spread"),
    Rule("healthy difference beside noise", "slow.significance:slowdown", "floor",
         "healthy + HEALTHY_NOISE_RATIO * noise"),
    Rule("moment: too short", "slow.ranks:is_brief", "False"),
    Rule("moment: long enough", "slow.ranks:is_long", "False"),
    Rule("moment: outlasts earlier ones", "slow.ranks:outlasts_moments", "True"),
)  # fmt: skip

RANKS: Final = (
    Rule("machine in place of its ranks", "slow.ranks:_slow_hosts", "()"),
    Rule("machine: most ranks have half", "slow.ranks:_most_are_slow", "True"),
    Rule("machine: ranks merged by phase", "slow.ranks:_merged_by_machine", "found"),
    Rule("peers without culprits", "slow.ranks:_disturbed", "np.zeros_like(culprits)"),
    Rule("spread of others where peers are few", "slow.ranks:_slow_ranks", "_spread(steps, others)",
         "_spread(steps, others) if len(others) >= MIN_PEERS else deviation(medians.whole[elsewhere])"),
    Rule("two ranks: noise of others", "slow.ranks:_slow_ranks", "others",
         "elsewhere if len(others) == 1 and len(elsewhere) >= MIN_PEERS else others"),
    Rule("stage changes by 5 %", "slow.ranks:_slow_ranks", "SLOW_RATIO",
         "CHANGED_RATIO if steps.past.alone[column] else SLOW_RATIO"),
    Rule("is waited for", "slow.ranks:is_waited_for", "True"),
    Rule("machine slow in no phase", "slow.ranks:machines_slow_elsewhere", "[]"),
    Rule("machine with stages of its own", "slow.ranks:machines_of_their_stages", "[]"),
    Rule("machine with stages of its own: each stage", "slow.ranks:_has_slow_stages", "False"),
    Rule("machine with stages of its own: each phase", "slow.ranks:_is_slow_in_each_phase", "False"),
    Rule("machine with work of its own", "slow.ranks:machines_of_their_own_work", "[]"),
    Rule("experts by passes and update", "slow.busy_threads:slow_at_their_own_experts", "steps, []"),
    Rule("experts: passes and update alike", "slow.busy_threads:_is_slower", "True"),
    Rule("time in no phase: note", "slow.busy_threads:unnamed_time_notes", "()"),
    Rule("time in no phase: rank 0 excused", "slow.busy_threads:accuses", "bool(notes)"),
)  # fmt: skip

NOW_AND_THEN: Final = (
    Rule("intermittent", "slow.intermittent:intermittent_ranks", "[]"),
    Rule("intermittent: shortest window", "slow.intermittent:intermittent_ranks", "False",
         "float(steps.duration.sum()) < (MIN_LIVE_SECONDS if steps.live else MIN_SECONDS)"),
    Rule("intermittent: piece by piece", "slow.intermittent:pieces", "()"),
    Rule("intermittent: cost buys chance", "slow.intermittent:intermittent_ranks", "EVIDENCE[:1]", "EVIDENCE"),
    Rule("intermittent: costs enough", "slow.intermittent:intermittent_ranks", "True",
         "_cost(steps, hits, column) > evidence.cost"),
    Rule("intermittent: clustering", "slow.intermittent:_clustering", "1.0"),
    Rule("intermittent: in both halves", "slow.intermittent:_habits", "np.ones(ranks, np.bool_)",
         "hits[:half].any(axis=0) & hits[half:].any(axis=0)"),
    Rule("intermittent: beyond what it always is", "slow.intermittent:_hits", "0.0",
         "np.clip(median_over_steps(excess), 0.0, SLOW_RATIO * middle(steps.duration))"),
    Rule("intermittent: common steps", "slow.intermittent:_are_common", "np.zeros(len(hits), np.bool_)"),
    Rule("intermittent: long spells", "slow.intermittent:_long_spells", "()"),
    Rule("intermittent: spells in both halves", "slow.intermittent:_long_spells", "np.ones(hits.shape[1], np.bool_)",
         "hits[:half].any(axis=0) & hits[half:].any(axis=0)"),
    Rule("intermittent: spells of one alone", "slow.intermittent:_long_spells", "True",
         "np.delete(episodes, column).max(initial=0) < episodes[column] / 2"),
    Rule("intermittent: whole machines", "slow.intermittent:_of_whole_machines", "()"),
    Rule("intermittent: ranks of a machine together", "slow.intermittent:_by_machine", "([each] for each in columns)"),
    Rule("shared data", "slow.busy_threads:without_shared_data", "list(slow)"),
    Rule("by turns", "slow.busy_threads:without_turns", "list(slow)"),
    Rule("by turns: note", "slow.busy_threads:by_turns_notes", "()"),
    Rule("few costly steps: unknown", "verdict:_in_few_steps", "()"),
    Rule("few costly steps: rank 0 excused", "verdict:_in_few_steps", "True",
         "steps.phased or int(timings.ranks[each.columns[0]]) != 0"),
    Rule("now and then: rank 0 without phases", "verdict:_slow_ranks", "False",
         "not steps.phased and timings.ranks[each.columns[0]] == 0"),
    Rule("too brief to accuse: unknown", "verdict:_slow_ranks", "True",
         "all(rank.since >= MIN_STEPS for rank in brief)"),
)  # fmt: skip

KINDS: Final = (
    Rule("left to one rank", "slow.culprits:_kind", "False", "alone and compared.phase in SCRIPTS"),
    Rule("rank 0 between steps", "slow.culprits:_does_more_between", "False"),
    Rule("more work by elements or update", "slow.uneven_work:more_work", "()"),
    Rule("more work: no more than pace tells", "slow.uneven_work:_is_slow_at_its_work", "False"),
    Rule("more work by the update", "slow.uneven_work:_by_update", "()"),
    Rule("more work between steps", "slow.uneven_work:more_between", "()"),
    Rule("more work by design is a note", "slow.uneven_work:is_by_design", "False"),
    Rule("CPU waits", "slow.host_facts:with_host_facts", "culprits"),
    Rule("busy threads", "slow.busy_threads:with_busy_threads", "tuple(culprits)"),
    Rule("stall: note", "slow.culprits:stall_notes", "[]"),
    Rule("replay of ranks", "slow.culprits:_by_replay", "None"),
    Rule("longest stage: unknown", "slow.steps:longest_stage_notes", "()"),
    Rule("kernels that wait", "verdict:_slow_ranks", "False", "timings.hidden_by"),
    Rule("waits that no hook sees", "verdict:_slow_ranks", "()", "timings.unseen_waits"),
    Rule("slow one may be missing: unknown", "slow.busy_threads:culprit_may_be_missing", "None"),
    Rule("profile of few ranks: less sure", "verdict:_less_sure", "culprit"),
    Rule("profile of few steps: hint", "slow.busy_threads:least_wait_notes", "()"),
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
         "ways_of_messages(job.timings, job.steps.numbers) if alone and not links else None"),
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
         "np.nan_to_num(rise).max(initial=0.0) > OWN_SHARE * median(excess[active])"),
    Rule("slow for a time: no noise", "links.raised:_chance", "0.0"),
    Rule("slow for a time: must cost enough", "links.raised:_again_and_again", "True", "cost >= MIN_COST_AT_TIMES"),
    Rule("slow for a time: one thing where it came seldom", "links.network:_in_change", "True",
         "change.known or places[0].is_one_thing"),
    Rule("slow for a time: not queued", "links.network:_without_queued", "found"),
)  # fmt: skip

HANGS: Final = (
    Rule("hung before the end", "hang.hangs:hung_before_the_end", "NOTHING_FOUND"),
    Rule("hung before the end: may have waited", "hang.hangs:hung_before_the_end", "True",
         "len(timings.ranks) >= timings.world_size and all(state.step is not None for state in states)"),
    Rule("hung now", "hang.hangs:hung_ranks", "NOTHING_FOUND"),
    Rule("hung: job suspended", "hang.hangs:hung_ranks", "False", "stopped and len(stopped) == len(states)"),
    Rule("hung: left early", "hang.hangs:_left", "()"),
    Rule("hung: beside each other", "hang.wait_graph:_beside_in_the_world", "{}"),
    Rule("hung: device behind", "hang.hangs:behind_devices", "()"),
    Rule("hung: device has not begun", "hang.hangs:_not_begun", "()"),
    Rule("hung: deadlock", "hang.wait_graph:WaitGraph.circle", "frozenset()"),
    Rule("hung: different collectives of a group", "hang.hangs:standing_differently", "None"),
    Rule("hung: not before it took long", "hang.hangs:_Hang._hung_after", "0.0"),
    Rule("hung: not in a usual wait", "hang.hangs:_Hang._usual_wait", "0.0"),
    Rule("hung: silent to the end", "hang.hangs:_Hang._culprit", "False",
         "self.ended and is_silent(state) and wait is not None"),
    Rule("waits in turn", "hang.wait_graph:find_waits", "[]", "[each for each in in_turn if each and each.awaited]"),
    Rule("waits by Flight Recorder", "hang.wait_graph:_waits_by_flight_recorder", "{}"),
    Rule("waits: read since", "hang.wait_graph:was_read_since", "True"),
    Rule("waits: another message of a batch", "hang.wait_graph:Arrivals.standing", "(flight,)", "(flight, *batch)"),
    Rule("mismatched collectives", "hang.different_calls:mismatched_collectives", "NOTHING_FOUND"),
    Rule("different calls", "hang.different_calls:different_calls", "None"),
    Rule("different calls: each lacks something", "hang.different_calls:_first_difference",
         "len({call.kind for call in first.values()}) > 1",
         "any(less - more for less, more in itertools.pairwise(ways))"),
    Rule("never finished", "hang.unfinished:unfinished_operations", "NOTHING_FOUND"),
    Rule("never finished: went on from it", "hang.unfinished:open_collectives", "True",
         "came[place, column] <= number"),
    Rule("never finished: in the last step", "hang.unfinished:_is_last", "np.ones(len(collectives.start), np.bool_)"),
    Rule("never finished: others wait for it", "hang.unfinished:_Unfinished._is_suspect", "True",
         "bool(ranks & self._graph.awaited)"),
    Rule("never finished: more than half", "hang.unfinished:_Unfinished.verdict", "True",
         "sum(len(each.ranks) for each in named) <= MAX_SHARE * len(self._by_rank)"),
    Rule("never finished: silent hosts", "hang.unfinished:_Unfinished._silent_hosts", "()"),
    Rule("never finished: in the most operations", "hang.unfinished:_suspicions", "()"),
    Rule("dumps of a running job", "hang.unfinished:_moving", "None"),
    Rule("older dumps", "hang.unfinished:_older_dumps", "None"),
    Rule("dumps: beside what went before", "hang.unfinished:Attendance._is_beside_all", "False"),
)  # fmt: skip

DEATHS: Final = (
    Rule("stopped to the end", "hang.hangs:stopped_to_the_end", "NOTHING_FOUND"),
    Rule("deaths", "hang.deaths:dead_ranks", "NOTHING_FOUND"),
    Rule("death: order", "hang.deaths:_Deaths._explains", "False"),
    Rule("death: silent before the others", "hang.deaths:_Deaths._is_silent_before", "one.why < other.why"),
    Rule("death: those that waited", "hang.deaths:_Deaths._waited_long", "False"),
    Rule("death: explained by another", "hang.deaths:_Deaths._explains", "False",
         "one.why < other.why and not other.precedes(one, allowed)"),
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
    Rule("death: stuck long before", "hang.deaths:_Deaths._tell_stuck", "None"),
    Rule("death: machine went down", "hang.deaths:_Deaths._by_machine", "((death,) for death in first)"),
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
         "len(group) >= MIN_REPLICAS and 2 * most > len(group) and all(count == 1 for _, count in others)"),
)  # fmt: skip

RULES: Final[tuple[Rule, ...]] = (
    *READING, *STEPS, *PLACES_OF_WORK, *SIGNIFICANCE, *RANKS, *NOW_AND_THEN, *KINDS, *LINKS, *LATER_LINKS, *HANGS,
    *DEATHS, *STACKS, *CORRUPT,
)  # fmt: skip

CORE: Final[Mapping[str, str]] = {
    "slow.steps:Steps.usable": "the steps that everything is judged by",
    "slow.steps:steps_needed": "a number in the words of a note",
    "slow.ranks:slow_ranks": "the measure itself: without it no rank is slow",
    "slow.ranks:has_stages_of_its_own": "asks whether the rule of a machine with stages of its own can be put",
    "slow.culprits:slow_culprits": "describes who was found",
    "slow.culprits:brief_notes": "words; that such a job is healthy is a rule",
    "slow.culprits:doubted_notes": "words of few costly steps",
    "slow.culprits:rank_zero_note": "words of rank 0 without phases",
    "slow.intermittent:doubted_ranks": "finds what few costly steps tells",
    "slow.busy_threads:missing_ranks_notes": "says which ranks are seen",
    "slow.busy_threads:one_rank_note": "says where the time of a single rank goes",
    "slow.culprits:stalls_beside": "the stalls of the rule that leaves them out",
    "slow.busy_threads:slow_at_their_own_experts": "asked by experts by passes and update",
    "slow.busy_threads:without_shared_data": "asked by shared data",
    "links.network:in_network": "asks the questions about links, each of which is a rule",
    "explanation:explained": "advice and findings; no verdict hangs on them",
    "medians:middle": "arithmetic",
}
"""The functions that a verdict calls and that are no rule, each with the reason."""
