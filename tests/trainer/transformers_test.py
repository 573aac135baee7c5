"""The recipes beside transformers: what three files compare with it, in one process, since importing it takes seconds."""

import unittest

from ner_test import NerTest
from qa_test import QaTest
from recipe_test import RecipeTest

CASES = (
    (RecipeTest, "history_equals_that_of_transformers_trainer"),
    (NerTest, "history_and_predictions_equal_those_of_transformers"),
    (QaTest, "history_and_answers_equal_those_of_transformers"),
    (QaTest, "questions_without_an_answer"),
)


def load_tests(_loader, _tests, _pattern):
    return unittest.TestSuite(case(name) for case, name in CASES)


if __name__ == "__main__":
    unittest.main()
