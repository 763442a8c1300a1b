"""Split leaks are found, in any wording, and what merely resembles them is kept."""

from curation_samples import chain_of, closing, look_up, task_of, trajectory_of

from afm_core.config import CurationConfig
from afm_core.curation import LeakIndex, RejectReason, curate_rows
from afm_core.data import AgentTask, Split

HELD_OUT = chain_of("Lima", "Peru", "Sol", split=Split.TEST)
TRAIN = chain_of("Mombasa", "Kenya", "Shilling")
INDEX = LeakIndex.build([HELD_OUT, TRAIN])


def test_openrlhf1089_a_test_question_and_its_paraphrase_in_train_are_caught():
    planted = [
        AgentTask.create(question, ("Sol",), component="kenya")
        for question in (
            "What is the currency of the country of Lima?",
            "what is the  CURRENCY of the country of lima",
            "The country of Lima has what currency?",
        )
    ]
    rows = [trajectory_of(task, closing("Sol")) for task in planted]
    _, decision = curate_rows(rows, [HELD_OUT, TRAIN, *planted], CurationConfig())
    assert [one.reason for one in decision.rejected] == [RejectReason.LEAK_QUESTION] * 3


def test_a_free_paraphrase_is_caught_by_the_entity_it_must_name():
    planted = AgentTask.create("How do shoppers pay where Lima is?", ("Sol",), component="kenya")
    _, decision = curate_rows([trajectory_of(planted, closing("Sol"))], [HELD_OUT, TRAIN, planted], CurationConfig())
    assert [one.reason for one in decision.rejected] == [RejectReason.LEAK_ENTITY]


def test_marin6854_a_thousand_trajectories_of_one_schema_are_kept():
    tasks = [task_of(f"City{number:04d}", f"Land{number:04d}") for number in range(1000)]
    rows = [trajectory_of(task) for task in tasks]
    kept, decision = curate_rows(rows, [*tasks, HELD_OUT], CurationConfig())
    assert len(kept) > 990
    assert decision.counts()["in"] == 1000


def test_questions_of_one_template_about_other_entities_are_no_leak():
    assert INDEX.similar_question("What is the currency of the country of Nairobi?") is None
    assert INDEX.similar_question("What is the currency of the country of Lima?") == HELD_OUT.id


def test_another_question_that_shares_a_name_is_left_to_the_entity_check():
    question = "How many airports were built around the old harbour district of Lima in the last two centuries?"
    assert INDEX.similar_question(question) is None
    assert INDEX.named_entity(question) == "lima"


def test_a_training_name_that_contains_a_held_out_name_is_not_taken_for_it():
    index = LeakIndex.build([task_of("Santiago", "Chile", split=Split.DEV), task_of("Santiago de Cuba", "Cuba")])
    assert index.named_entity("Santiago de Cuba: is a city in the country Cuba.") is None
    assert index.named_entity("From Santiago de Cuba to Santiago.") == "santiago"


def test_short_codes_are_matched_with_their_case():
    index = LeakIndex.build([task_of("AND", "Anderson Airport", split=Split.TEST, relation="airport")])
    assert index.named_entity("Supported by this and that.") is None
    assert index.named_entity("AND airport") == "AND"


def test_shared_values_and_numbers_are_no_entities():
    held_out = chain_of("Lima", "Peru", "Dollar", split=Split.TEST)
    people = task_of("Cusco", "428450", split=Split.TEST, relation="population")
    index = LeakIndex.build([held_out, people, TRAIN])
    assert index.named_entity("has the currency Dollar and 428450 people") is None
    assert index.named_entity("a city in the country Peru") == "peru"


def test_accents_and_case_do_not_hide_a_name():
    index = LeakIndex.build([task_of("Nouméa", "New Caledonia", split=Split.GATE)])
    assert index.named_entity("as in NOUMEA") == "noumea"


def test_questions_without_names_are_compared_as_a_whole():
    held_out = AgentTask.create("how many primes are there below one hundred and ten", ("29",), split=Split.TEST)
    index = LeakIndex.build([held_out])
    assert index.similar_question("How many primes are there below one hundred and ten?") == held_out.id
    assert index.similar_question("how many squares are there below one thousand") is None


def test_no_leak_index_without_held_out_tasks():
    assert LeakIndex.build([TRAIN]).named_entity("Mombasa Kenya Shilling") is None
    rows = [trajectory_of(TRAIN, [*look_up(TRAIN), *closing("Shilling")])]
    assert curate_rows(rows, [TRAIN], CurationConfig(guessable_share=1))[1].rejected == ()
