"""The detokenizer process of forebay: `python -m forebay_detokenizer`."""
