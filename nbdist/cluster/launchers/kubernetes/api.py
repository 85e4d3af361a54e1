"""The API of a Kubernetes cluster, through its official client; objects are plain JSON values.

api = Api(context="")          # within a pod, or of the user's kubeconfig
api.call("create", "job", body={...})
"""

from __future__ import annotations

import json
from contextlib import suppress
from http import HTTPStatus
from typing import Any

from nbdist.cluster.launchers.kubernetes.request import OUTSIDE, TOKEN, in_pod
from nbdist.cluster.launchers.kubernetes.status import LONGEST, explain_refusal
from nbdist.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError, UnavailableError
from nbdist.text import clip

CALL_SECONDS = 10.0  # until the API counts as silent
REVIEW_SECONDS = 3.0  # and where it is only asked for a right
MERGE_PATCH = "application/merge-patch+json"  # the client's own choice would be another kind of patch
GROUPS = {"job": "BatchV1Api"}  # all other kinds are of the core


class Silent(UnavailableError):
    """The API does not answer, or cannot at present."""


class Api:
    """The API in one namespace: that of the request, of the pod around this process, or of the context."""

    def __init__(self, context: str = "", namespace: str = "") -> None:
        from kubernetes import client, config
        from kubernetes.config import ConfigException

        own, settings = "", client.Configuration()
        settings.retries = False  # the caller decides whether to ask again
        try:
            if context:
                config.load_kube_config(context=context, client_configuration=settings)
                contexts, _ = config.list_kube_config_contexts()
                own = next(one["context"].get("namespace", "") for one in contexts if one["name"] == context)
            elif in_pod():
                config.load_incluster_config(settings)
                own = TOKEN.with_name("namespace").read_text().strip()
            else:
                raise InvalidArgumentError(OUTSIDE)
        except (ConfigException, OSError) as error:
            said = " ".join(str(error).split())
            raise FailedPreconditionError(
                f"no configuration of Kubernetes can be used ({said}): see `kubectl config get-contexts`, "
                "and set KUBECONFIG to the path of the right file"
            ) from None
        self.namespace, self.server = namespace or own or "default", settings.host
        shared = client.ApiClient(settings)
        self._groups = {name: getattr(client, name)(shared) for name in ("CoreV1Api", "BatchV1Api")}
        self._reviews = client.AuthorizationV1Api(shared)

    def may(self, verb: str, group: str, resource: str) -> bool:
        """Return whether this account has a right in the namespace; not if the API does not say so."""
        import urllib3
        from kubernetes.client import ApiException

        asked = {"namespace": self.namespace, "verb": verb, "group": group, "resource": resource}
        try:
            answer = self._reviews.create_self_subject_access_review(
                {"spec": {"resourceAttributes": asked}},
                _preload_content=False,
                _request_timeout=REVIEW_SECONDS,
            )
            return json.loads(answer.data).get("status", {}).get("allowed") is True
        except (ApiException, urllib3.exceptions.HTTPError, ValueError, AttributeError):
            return False

    def call(self, verb: str, kind: str, **arguments: Any) -> dict[str, Any]:
        """Return what the API answers; ``verb`` is "create", "read", "list", "patch" or "delete".

        Raises NotFoundError for an object that is not there, Silent without an answer, and UnavailableError
        with a sentence if it refuses.
        """
        import urllib3
        from kubernetes.client import ApiException

        call = getattr(self._groups[GROUPS.get(kind, "CoreV1Api")], f"{verb}_namespaced_{kind}")
        if verb == "patch":
            arguments["_content_type"] = MERGE_PATCH
        if verb == "create":
            # A field that it does not know is an error, not left out.
            arguments["field_validation"] = "Strict"
        try:
            answer = call(
                namespace=self.namespace, _preload_content=False, _request_timeout=CALL_SECONDS, **arguments
            )
            return dict(json.loads(answer.data))
        except ApiException as error:
            status, said = int(error.status or 0), str(error.reason or "")
            with suppress(ValueError, TypeError, AttributeError):
                said = json.loads(error.body or "").get("message") or said
            if status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.REQUEST_TIMEOUT) or status >= 500:
                raise Silent(
                    f"the API of Kubernetes at {self.server} cannot answer ({status}: {clip(said, LONGEST)})"
                ) from None
            words = explain_refusal(
                status, said, "get" if verb == "read" else verb, f"{kind}s", self.namespace
            )
            kind_of_error = (
                NotFoundError if status == HTTPStatus.NOT_FOUND and "name" in arguments else UnavailableError
            )
            raise kind_of_error(words) from None
        except urllib3.exceptions.HTTPError as error:
            raise Silent(
                f"the API of Kubernetes at {self.server} does not answer ({clip(error, LONGEST)}); see "
                "`kubectl cluster-info`"
            ) from None
        except ValueError as error:  # the client knows the schema, and has not sent it
            said = " ".join(str(error).partition("For further")[0].split())
            raise InvalidArgumentError(
                f"this is no {kind} of Kubernetes ({said}): see pod_template="
            ) from None
