from bert_pipeline.vocabulary.quality import quality
from bert_pipeline.vocabulary.tokenizer import SPECIAL_TOKENS, Tokenizer


def test_quality_counts_unknown_and_whole_words():
    tokenizer = Tokenizer.from_tokens([*SPECIAL_TOKENS, "the", "un", "##able"], do_lower_case=True)
    report = quality(tokenizer, {"the": 6, "unable": 3, "xyz": 1})
    assert report == {
        "words": 10,
        "tokens_per_word": 1.3,
        "unk_share": round(1 / 13, 6),
        "characters_lost_share": round(3 / (18 + 18 + 3), 6),
        "whole_words_share": 0.6,
        "longest_pieces": ["##able", "the", "un"],
    }
