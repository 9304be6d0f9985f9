"""The routes of the server, one file for each part of the API."""
