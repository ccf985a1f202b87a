"""The studies of the model lab: claims that people repeat, each a case with memory, speed and loss side by side.

switches.py             what can be switched, and the ladder of what people combine
training.py             a case of training on real text: cost, set-up, loss, and the step measured
recommendation.py       from the numbers of a switch to advice
mixers.py, mixer_findings.py
                        models with other mixers at the same parameters, and what they come to
findings.py             what the other studies come to, in words
precision.py, precision_findings.py
                        sums and norms in low precision, and what they come to
test_optimisations.py   each switch against the baseline; the ladder
test_compile.py         eager beside compiled, for attention and for the model
test_mixers.py          attention, the other mixers and experts, at two context lengths
test_memory.py          where memory goes, by context length
test_precision.py       accumulation, the dtypes under autocast, norms in low precision
test_reasoning.py, reasoning_findings.py
                        searches at test time: accuracy against tokens, time and memory
"""
