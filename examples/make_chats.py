#!/usr/bin/env python3
"""Chats to fine-tune on, one a line, in the form that most chat data has: python3 examples/make_chats.py > chats.jsonl"""

import itertools
import json
import random

WORDS = ("light darkness heaven earth water land sea grass herb seed fruit tree season day year star bird whale cattle "
         "beast man woman garden river gold stone bone flesh serpent ground dust bread field brother flock offering").split()
ASKED = ["Say {} {}.", "Please say {} {}.", "Can you say {} {}?", "I want to hear {} {}."]
TIMES = {"once": 1, "twice": 2, "three times": 3, "four times": 4}


def main():
    random.seed(1)
    pairs = list(itertools.product(WORDS, TIMES))
    for _ in range(4000):
        messages = []
        for word, times in random.sample(pairs, random.randint(1, 3)):
            messages.append({"role": "user", "content": random.choice(ASKED).format(word, times)})
            messages.append({"role": "assistant", "content": " ".join([word] * TIMES[times]) + "."})
        print(json.dumps({"messages": messages}))


if __name__ == "__main__":
    main()
