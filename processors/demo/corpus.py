# ruff: noqa: RUF001 (Chinese and Japanese text has its own punctuation)
"""The text that the small demo tokenizers are trained on; written for this purpose."""

from __future__ import annotations

_ENGLISH = """
A small town lies between a river and a long green hill. In the morning the market opens, and people
come with baskets to buy bread, apples, cheese and fresh fish. A child in a red jacket points at a
yellow balloon that floats above the old stone bridge. Two dogs run along the bank, and a white boat
moves slowly under the trees.
What is shown in this image? Describe the picture in detail, please. How many people are there, and
what are they doing? Which objects stand on the table? Read the text on the sign and translate it.
Look at the video and say what happens first, what happens next, and how it ends. At which second
does the car turn left? Count the frames in which the ball is visible. Compare the first image with
the second image and list every difference.
Listen to the audio recording and transcribe it. Who is speaking, and in which language? Is there
music in the background, or only the sound of rain, wind and traffic? Summarise the conversation in
three short sentences, then answer the question of the user.
You are a helpful assistant. The system message tells the assistant how to behave; the user asks,
and the assistant answers. If something is not known, say so. Do not invent numbers, names or dates.
Think step by step before you write the final answer, and keep the explanation brief and correct.
The chart shows the temperature of every month: January is cold, July is warm, and October lies
between them. The left axis gives degrees, the right axis gives millimetres of rain. The highest
column belongs to August with 31 degrees; the lowest one belongs to February with 2 degrees.
Here is the original image and here are some crops to help you see better. The document has four
pages, two tables, one figure and a signature. The invoice number is 4711, the total is 1,284.50 and
the date is 2024-03-17. Extract the fields as JSON with the keys number, total, currency and date.
The camera moves from the window to the door. Someone opens a cupboard, takes a blue cup, pours hot
water into it and waits for two minutes. Then the light changes, the screen turns black, and a title
appears: "The end of the beginning". During the last five seconds a quiet voice can be heard.
An engine reads tokens, a processor turns pixels into patches, and a model predicts the next token.
Every patch covers fourteen by fourteen pixels; four neighbouring patches become one visual token.
The width and the height are rounded, so that the number of patches in both directions is even.
Some words repeat because language repeats: the quick brown fox jumps over the lazy dog, and again
the quick brown fox jumps over the lazy dog. Would you like to know more about it? Yes, of course I
would; I've been waiting, they're ready, we'll see, she'd agree, it's fine, don't worry, that's all.
"""

_OTHER_LANGUAGES = """
这张图片里有什么？请描述这张图片。图中有一只猫和一条狗。视频里发生了什么？请把这段音频转写成文字。
你是一个有用的助手。请用中文回答问题，并给出简短的解释。第一张图片和第二张图片有什么不同？
Que montre cette image ? Décris la scène en détail. La maison est grande et le jardin est très beau.
¿Qué se ve en la imagen? El perro come una manzana, y la niña lee un libro debajo del árbol.
Was ist auf dem Bild zu sehen? Der Zug fährt über die Brücke, und die Kinder winken fröhlich.
この画像には何が写っていますか。動画の内容を説明してください。音声を書き起こしてください。
Что изображено на картинке? Опишите видео и запись голоса. ما الذي يظهر في هذه الصورة؟
"""

_CODE_AND_NUMBERS = """
def area(width, height):
    if width <= 0 or height <= 0:
        raise ValueError("width and height must be positive")
    return width * height

for index, item in enumerate(items):
    print(f"{index}: {item['name']} -> {item['value']:.2f}")

{"name": "demo", "values": [0, 1, 2, 3, 4, 5, 6, 7, 8, 9], "nested": {"true": true, "null": null}}
<0.5 seconds> <1.0 seconds> <1.5 seconds> 00:00 00:01 00:02 00:10 01:30 Frame1: Frame2: Frame 12
10 20 30 100 128 224 256 336 384 448 512 768 1024 1920x1080 3.14159 2.71828 1e-6 99% $5.00 #1 @user
user assistant system tool USER: ASSISTANT: SYSTEM: image video audio Picture 1: Video 1: Audio 1:
SELECT name, count(*) FROM photos WHERE taken_at > '2023-01-01' GROUP BY name ORDER BY 2 DESC;
https://example.com/path/to/picture.jpg?size=large&format=jpeg
"""

CORPUS: tuple[str, ...] = tuple(
    paragraph
    for text in (_ENGLISH, _OTHER_LANGUAGES, _CODE_AND_NUMBERS)
    for paragraph in (text, text.lower())
)
"""Paragraphs in English, other languages, and code: each as written and once in lower case."""
