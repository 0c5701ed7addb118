"""What the simulated users ask about: things of their own, some for training, others that only the held-out judge asks.

About the users' own things the base model asks back more often than about things in general (quality × style 0.12 of
192 answers against 0.08 of 128), so that a taste for questions can be learned from single answers in reasonable time.
"""

TRAINING_TOPICS: tuple[str, ...] = (
    # home
    "my garden", "my new flat", "my kitchen", "my balcony", "my houseplants", "my old chair", "my books",
    "my neighbours", "my front door", "my cleaning plan", "my vegetable patch", "my rose bush", "my garage",
    "my writing desk", "my new curtains", "my attic", "my fireplace", "my lamp", "my move to the city",
    "my house in the country",
    # food
    "my cooking", "my soup recipe", "my breakfast", "my bread", "my lunch", "my birthday cake", "my coffee",
    "my diet", "my pizza", "my dinner for friends", "my picnic", "my grandmother's pie", "my spicy noodles",
    "my pancakes", "my salad", "my barbecue", "my tea collection", "my apple tree", "my lemonade", "my sandwich",
    # family and friends
    "my sister", "my brother", "my best friend", "my grandfather", "my cousins", "my wedding", "my birthday party",
    "my family visit", "my dog", "my cat", "my parrot", "my goldfish", "my horse", "my rabbit", "my dinner guests",
    "my pen friend", "my old class", "my twins", "my first date", "my new friend",
    # work and school
    "my new job", "my job interview", "my exam next week", "my homework", "my first day at school", "my teacher",
    "my business idea", "my office", "my boss", "my speech tomorrow", "my science project", "my essay", "my career",
    "my commute", "my morning meeting", "my language course", "my driving lessons", "my presentation", "my shop",
    "my retirement",
    # travel
    "my trip to the sea", "my holiday", "my weekend plans", "my train journey", "my hiking tour", "my camping trip",
    "my travel bag", "my flight", "my summer plans", "my winter holiday", "my sailing trip", "my visit to the museum",
    "my bus ride", "my walk in the woods", "my boat", "my map", "my hotel", "my old car", "my tent", "my journey home",
    # arts and play
    "my first novel", "my painting", "my piano lessons", "my guitar", "my favourite song", "my poem", "my diary",
    "my dance class", "my camera", "my drawing", "my choir", "my film idea", "my chess game", "my card trick",
    "my puzzle", "my knitting", "my model railway", "my pottery", "my comic book", "my theatre play",
    # sport and health
    "my running plan", "my team", "my new bike", "my tennis match", "my swimming class", "my yoga routine",
    "my football boots", "my marathon", "my gym", "my climbing club", "my skateboard", "my sleep", "my skiing",
    "my morning walk", "my workout",
    # things and thoughts
    "my new look", "my new phone", "my dream", "my old watch", "my computer", "my umbrella", "my hat", "my backpack",
    "my birthday present", "my wish list", "my radio", "my plan for tomorrow", "my lucky charm", "my new coat",
    "my headphones",
)  # fmt: skip
"""Topics of the conversations that are trained on."""

HELD_OUT_TOPICS: tuple[str, ...] = (
    "my new shoes", "my old friends", "my violin", "my drums", "my tree house", "my telescope", "my cookies",
    "my road trip", "my postcards", "my hammock", "my snowman", "my school play", "my handwriting", "my baseball team",
    "my rowing boat", "my treasure hunt", "my afternoon nap", "my puppet show", "my orange juice", "my hot air balloon",
    "my pet hedgehog", "my woodworking", "my digital camera", "my fountain pen", "my windmill", "my fireworks",
    "my flea market stall", "my table tennis", "my potatoes", "my sunflowers", "my biography", "my watercolours",
    "my quiet evening", "my lake house", "my kangaroo drawing", "my science fiction story", "my squirrel feeder",
    "my geography test", "my noodle soup", "my submarine model",
)  # fmt: skip
"""Topics that are never trained on: the held-out judge asks about these."""
