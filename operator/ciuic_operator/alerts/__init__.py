"""Telling people in their chat what happened to a job. Used by `execute`, which shows it each status that was persisted.

raising   two statuses -> alerts             words, english, chinese   an alert -> what a person reads
policy    a mailbox: merge, wait, drop       formats                   alerts -> the request of one kind of receiver
delivery  the requests                       desk                      the way in: never waits, never fails
"""
