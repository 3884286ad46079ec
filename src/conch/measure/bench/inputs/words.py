"""Frequent English words: in most tokenizers each is one token, with the space before it."""

_TEXT = """
about above across after again against almost alone along already also although always among animal another answer
around because become before begin behind below between body book both bring brother build business call can care
carry change child city clear close cold come common could country course cover cut dark day dear deep different
door down draw drive during each early earth east eat end enough even evening ever every eye face fact family far
father feel field fight figure fill find fire first fish five floor fly follow food foot force form four free friend
from front full game garden general give glass good government great green ground group grow half hand happy hard
have head heart heat heavy help here high hold home horse hot hour house how hundred idea important into island
keep kind king know land language large last late laugh lead learn leave left letter life light like line list
listen little live long look lose love low machine make man many mark matter mean measure meet middle might mile
mind minute money moon more morning most mother mountain move much music must name near need never new next night
north note nothing notice now number object ocean off offer office often old once one only open order other our out
over own page paper part pass past pay people perhaps person picture piece place plain plan plant play point poor
power present press problem produce public put question quick quiet rain reach read ready real reason record red
remember rest result return rich right river road rock room round rule run same school sea second see seem send
sentence serve set seven several shape ship short should show side simple since sing six size sleep slow small snow
some song soon sound south space speak special stand star start state stay step still stone stop story street strong
study such summer sun sure surface table take talk teach tell ten test than that their them then there these they
thing think this those though thought three through time together too top touch town trade train travel tree true
try turn two under unit until use usual valley very voice wait walk wall want war warm watch water way week weight
well west what wheel when where which while white who whole why wide will wind winter with without woman wonder
wood word work world would write year yes young
"""
WORDS = tuple(_TEXT.split())
