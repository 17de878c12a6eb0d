"""Sources of media: what a Media value is, fetching it, and which addresses may be reached."""

from app.loading.loader import Loader as Loader
from app.loading.loader import ProbedUrl as ProbedUrl
