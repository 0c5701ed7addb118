"""What the simulated users ask about: topics for training, and others that only the held-out judge asks."""

TRAINING_TOPICS: tuple[str, ...] = (
    # outdoors
    "mountains", "rivers", "forests", "the ocean", "deserts", "waterfalls", "thunderstorms", "rainbows", "snow",
    "autumn leaves", "spring flowers", "summer evenings", "winter mornings", "sunsets", "the full moon",
    "shooting stars", "camping", "hiking", "fishing", "gardening", "picnics", "beaches", "islands", "volcanoes",
    "caves", "national parks", "wild mushrooms", "rain", "fog", "the wind",
    # animals
    "cats", "dogs", "horses", "elephants", "penguins", "dolphins", "owls", "butterflies", "honey bees", "spiders",
    "turtles", "rabbits", "parrots", "goldfish", "wolves", "foxes", "whales", "ants", "zoos", "bird watching",
    # food and drink
    "coffee", "green tea", "chocolate", "pizza", "fresh bread", "pasta", "soup", "spicy food", "ice cream",
    "breakfast", "apples", "strawberries", "cheese", "honey", "pancakes", "street food", "school lunches",
    "home cooking", "salads", "barbecues", "sandwiches", "vegetarian food", "birthday cake", "popcorn", "lemonade",
    "garlic", "olive oil", "farmers markets", "cooking shows", "eating alone",
    # arts
    "jazz", "classical music", "rock concerts", "the piano", "the guitar", "singing in the shower",
    "street musicians", "opera", "folk songs", "dancing", "ballet", "theatre", "comedies", "horror movies",
    "cartoons", "documentaries", "poetry", "novels", "short stories", "fairy tales", "comic books", "libraries",
    "bookshops", "museums", "painting", "photography", "sculpture", "pottery", "architecture", "origami",
    # daily life
    "waking up early", "naps", "long walks", "public transport", "commuting", "working from home", "open offices",
    "meetings", "email", "handwritten letters", "phone calls", "text messages", "shopping malls", "garage sales",
    "cleaning the house", "houseplants", "rainy weekends", "birthdays", "weddings", "family dinners", "neighbours",
    "small talk", "silence", "daydreaming", "keeping a diary", "making lists", "being late", "free time",
    "holidays", "moving to a new city",
    # sport and play
    "football", "tennis", "swimming", "running", "cycling", "yoga", "basketball", "skiing", "ice skating",
    "surfing", "climbing", "chess", "board games", "video games", "puzzles", "card games", "crosswords",
    "marathons", "team sports", "the gym", "skateboarding", "archery", "kites", "juggling", "sandcastles",
    # learning and work
    "mathematics", "history lessons", "learning languages", "school uniforms", "homework", "teachers",
    "universities", "science fairs", "astronomy", "chemistry experiments", "dinosaurs", "maps", "dictionaries",
    "public speaking", "volunteering", "first jobs", "small businesses", "handmade furniture", "knitting",
    "sewing",
    # technology and places
    "robots", "smartphones", "the internet", "electric cars", "space travel", "satellites", "trains", "airplanes",
    "sailing boats", "bridges", "lighthouses", "old castles", "big cities", "small villages", "skyscrapers",
    "clocks", "umbrellas", "pencils", "bicycles", "recycling", "solar power", "wind turbines", "online shopping",
    "radio", "virtual reality",
)  # fmt: skip
"""Topics of the conversations that are trained on."""

HELD_OUT_TOPICS: tuple[str, ...] = (
    "lakes", "sunflowers", "hot air balloons", "hedgehogs", "squirrels", "kangaroos", "orange juice", "noodles",
    "cookies", "potatoes", "violins", "drums", "science fiction", "biographies", "watercolours", "puppet shows",
    "afternoon tea", "road trips", "quiet mornings", "new shoes", "old friends", "flea markets", "baseball",
    "rowing", "table tennis", "treasure hunts", "geography", "school plays", "calligraphy", "woodworking",
    "telescopes", "submarines", "digital cameras", "tree houses", "fountains", "windmills", "postcards",
    "fireworks", "hammocks", "snowmen",
)  # fmt: skip
"""Topics that are never trained on: the held-out judge asks about these."""
