"""The resources of the API, one module each: their verbs and the documents these read and write."""
