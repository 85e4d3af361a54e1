# The names that nbdist/summary/__init__.py loads, with their types for editors and type checkers.
from nbdist.summary.ops import SummaryOp as SummaryOp
from nbdist.summary.ops import embedding as embedding
from nbdist.summary.ops import figure as figure
from nbdist.summary.ops import graph as graph
from nbdist.summary.ops import histogram as histogram
from nbdist.summary.ops import hparams as hparams
from nbdist.summary.ops import image as image
from nbdist.summary.ops import merge as merge
from nbdist.summary.ops import merge_all as merge_all
from nbdist.summary.ops import scalar as scalar
from nbdist.summary.ops import text as text
from nbdist.summary.writer import FileWriter as FileWriter
from nbdist.summary.writer import create_file_writer as create_file_writer
