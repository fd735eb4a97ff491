"""Words the pretraining data is made of. Nothing here comes from the environments Renshu ships."""

NOUNS = """
apple barrel basket battery bench blanket boat bolt bottle box brick bridge broom brush bucket bulb button
cable camera candle canvas carpet chair chest clock coat coin comb cord crate cup curtain desk dish door
dress drill drum engine fabric fan fence filter flag flute frame garden gear glass globe glove guitar hammer
handle hat helmet hinge hook horn jacket jar key kettle kite knife ladder lamp lantern leaf lens letter lid
lock magnet map marble mask mat meter mirror motor mug nail needle net oven paint pan panel paper pen pencil
piano pillow pipe plank plant plate plug pocket pot rail ring rod roof rope rug saddle sail saw scarf screen
screw seed shelf shell ship shirt shoe shovel sign sink sleeve soap sock spoon spring stamp statue stool
stove string switch table tank tape tent thread tile tire towel toy tray tree truck tube umbrella valve vase
vest violin wagon wallet watch wheel whistle window wire wrench
""".split()

ADJECTIVES = """
amber big black blue bold brass bright broad brown calm clean clear cold cool copper crisp dark deep dense
dry dull dusty fair fast fine firm flat fresh gold grand gray green hard heavy high hollow iron large late
light long loose loud low matte mild narrow neat new old open oval pale plain proud pure quick quiet rare
raw red rich rough round rusty safe sharp shiny short silver simple slim slow small smooth soft solid spare
square steel steep sweet tall thick thin tight tiny warm wet white wide wild wooden yellow young
""".split()

VERBS = """
add check claim close collect count deliver describe fetch fill find get give grade hold inspect issue keep
list load look mark measure merge move note open order pack pick place plan post print pull push query rank
read record rent report request reserve return scan select send show sort start stop store take tell track
turn update use verify view weigh write
""".split()

PLACES = """
Ashford Bellmont Briarton Calder Corvale Dunmore Eastwick Elmhurst Fairhaven Glenrock Harrow Ironbridge
Juniper Kelso Larkspur Maplewood Norwood Oakley Pinecrest Quarry Ridgeway Stonehill Thornton Upton Valebrook
Westbury Yarrow Zephyr Almond Birchwood Cedarville Dover Easton Foxhill Grafton Holloway Ivydale Kingsley
Linden Milford
""".split()

PEOPLE = """
Bela Cora Dan Eva Gwen Ines Liam Mona Quinn Rosa Sam Tess Umar Will Xena Yuri Zoe Amir Chen Dora Emil Faye
Goro Hana Ivan Jana Kofi Lena Milo Nora Otis Pia Remi Sara Theo Ursa Vito Wren Yann Zara
""".split()

SYLLABLES = """
ba be bi bo bu da de di do du fa fe fi fo ga go ha he hi ho ka ke ki ko ku la le li lo lu ma me mi mo mu na
ne ni no nu pa pe pi po ra re ri ro ru sa se si so su ta te ti to tu va ve vi vo wa we wi ya yo za ze zo
""".split()

ENDINGS = ["n", "r", "s", "t", "l", "m", "nd", "rt", "st", "x", ""]

# Syllables could spell these by chance; the environments that ship must stay unseen.
RESERVED = """
kira mara tara yara rita gina vera zeno rome lima oslo sara lisbon
""".split()

UNITS = [
    "$",
    "€",
    "£",
    "kg",
    "km",
    "min",
    "pts",
    "cm",
    "g",
    "h",
    "lb",
    "mm",
    "W",
    "L",
    "MB",
    "x",
    "%",
    "k",
    "u",
]
PREFIXED = {"$", "€", "£", "k", "u"}
