"""Fine-tunes a tiny model with the Trainer of transformers, on all workers. The model is made here.

    pip install "nbdist[torch]" transformers accelerate

In a notebook put `%%distribute --framework torch` above the content of this file, or run the file:

    run = nb.launch(Path("fine_tune.py").read_text(), framework="torch")

Nothing in it depends on that: `python fine_tune.py` trains in one process, and `torchrun --nproc-per-node 2
fine_tune.py` in two. The Trainer finds its rank in the environment, gives each rank its share of each batch,
and averages the gradients. In a cell the live view draws what it logs; `model` comes home by itself.

To fine-tune a model of the hub, make `tokenizer` and `model` by `from_pretrained(...)`. The task here is made
up: does a sentence speak of the weather or of food?
"""

import random

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
)

WEATHER = ["rain", "snow", "sun", "wind", "cloud", "fog", "storm", "hail"]
FOOD = ["bread", "rice", "soup", "cheese", "apple", "pasta", "salad", "cake"]
OTHER = ["the", "a", "today", "was", "very", "good", "bad", "we", "had", "again"]

vocabulary = {
    word: number for number, word in enumerate(["[PAD]", "[CLS]", "[UNK]", *WEATHER, *FOOD, *OTHER])
}
words = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
words.pre_tokenizer = pre_tokenizers.Whitespace()
words.post_processor = processors.TemplateProcessing(
    "[CLS] $A", special_tokens=[("[CLS]", vocabulary["[CLS]"])]
)
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=words, pad_token="[PAD]", cls_token="[CLS]", unk_token="[UNK]"
)


def sentences(count: int, seed: int) -> list[dict[str, object]]:
    """Return tokenized sentences of eight words, one of which tells the topic: 0 is weather, 1 is food."""
    chance, made = random.Random(seed), []
    for _ in range(count):
        topic = chance.randrange(2)
        sentence = [*chance.choices(OTHER, k=7), chance.choice(FOOD if topic else WEATHER)]
        chance.shuffle(sentence)
        made.append({**tokenizer(" ".join(sentence)), "labels": topic})
    return made


torch.manual_seed(0)
model = BertForSequenceClassification(
    BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=16,
        num_labels=2,
    )
)
trainer = Trainer(
    model,
    TrainingArguments(
        "fine-tuned",
        num_train_epochs=4,
        per_device_train_batch_size=16,
        learning_rate=3e-3,
        logging_steps=5,
        save_strategy="no",
        report_to="none",
        use_cpu=not torch.cuda.is_available(),
        average_tokens_across_devices=False,  # else a classifier's loss is multiplied by the number of ranks
    ),
    train_dataset=sentences(640, seed=1),
    eval_dataset=sentences(128, seed=2),
    processing_class=tokenizer,
    compute_metrics=lambda found: {
        "accuracy": float((found.predictions.argmax(1) == found.label_ids).mean())
    },
)
trainer.train()
accuracy = trainer.evaluate()["eval_accuracy"]
steps, ranks = trainer.state.global_step, trainer.args.world_size
print(f"{ranks} ranks, {steps} steps: accuracy {accuracy:.2f} on new sentences")
