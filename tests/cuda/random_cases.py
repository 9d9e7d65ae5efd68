"""Writes random case texts over what the GPU kernels take: random_cases.py COUNT [SEED]."""
import random
import sys

LENGTHS = [0, 1, 2, 7, 15, 16, 17, 31, 33, 63, 64, 65, 100, 127, 128, 129, 191, 200, 255, 256, 257, 300]
HEAD_DIMS = [1, 3, 5, 7, 8, 16, 32, 40, 63, 64, 65, 72, 80, 96, 100, 120, 128, 192, 256, 320, 512, 576]


def case(r):
    def maybe(share, *texts):
        return [r.choice(texts)] if r.random() < share else []

    head_dim = r.choice(HEAD_DIMS + [64, 128, 128, 256])
    key_heads, group = r.choice([1, 1, 2, 3]), r.choice([1, 1, 2, 3, 4, 7, 8])
    tokens = [r.choice(["f16", "bf16"]), "b%d" % r.choice([1, 1, 2, 3]), "hq%d" % (key_heads * group)]
    tokens += ["hk%d" % key_heads, "sq%d" % r.choice(LENGTHS if r.random() < 0.7 else [1, 2, 3, 5])]
    tokens += ["sk%d" % r.choice(LENGTHS if r.random() < 0.8 else [512, 777, 1000]), "d%d" % head_dim]
    tokens += ["dv512"] if head_dim > 512 else maybe(0.2, *["dv%d" % d for d in (8, 32, 33, 64, 96, 128, 200, 256, 512)])
    tokens += maybe(0.45, "causal", "causal", "causal", "causaltl") + maybe(0.25, "wl0", "wl1", "wl5", "wl63", "wl100")
    tokens += maybe(0.15, "wr0", "wr1", "wr5", "wr64") + maybe(0.12, "scale0", "scale-0.1", "scale0.5", "scale1")
    tokens += maybe(0.12, "softcap1", "softcap5", "softcap30") + maybe(0.12, "alibi", "alibib")
    tokens += maybe(0.12, "bias", "bias11", "biasb1", "bias1h", "biasbhf32") + maybe(0.12, "sink")
    layout = maybe(0.5, "packed", "packed", "packedq", "packedk", "page1", "page3", "page16", "page64", "page100")
    tokens += layout + maybe(0.3, "ragged") + (maybe(0.3, "gap") if layout == ["packed"] else [])
    tokens += maybe(0.3, "bhsd", "qkvpacked", "broadcastk", "reversed") + ["seed%d" % (2 * r.randrange(500))]
    return "_".join(tokens + maybe(0.2, "split2", "split3", "split7") + maybe(0.1, "nolse"))


if __name__ == "__main__":
    generator = random.Random(int(sys.argv[2]) if len(sys.argv) > 2 else 0)
    for _ in range(int(sys.argv[1])):
        print(case(generator))
