# The examples in the help of the commands.
offsetmgr groups list --bootstrap-server k1:9092 --state
offsetmgr groups list 'billing-*' --context prod
offsetmgr groups describe billing --bootstrap-server k1:9092
offsetmgr groups describe --all-groups --top 10
offsetmgr groups describe billing --watch 5
offsetmgr groups delete old-billing --bootstrap-server k1:9092 --execute
offsetmgr groups copy billing billing-test --bootstrap-server k1:9092 --execute
offsetmgr groups rename billing invoices --bootstrap-server k1:9092 --execute
offsetmgr offsets get billing --bootstrap-server k1:9092
offsetmgr offsets get billing -t orders:0,1 --format json
offsetmgr offsets lag billing --bootstrap-server k1:9092
offsetmgr offsets lag --all-groups --totals --sort lag
offsetmgr offsets lag billing --watch
offsetmgr offsets peek billing --bootstrap-server k1:9092
offsetmgr offsets peek billing -t orders:3 --format json
offsetmgr offsets set billing -t orders:0 --to-offset 4200 --bootstrap-server k1:9092 --execute
offsetmgr offsets reset billing -t orders --to-earliest --bootstrap-server k1:9092
offsetmgr offsets reset billing -t orders --by-duration 1h30m --execute
offsetmgr offsets reset billing --all-topics --to-datetime 'yesterday 14:00' --execute
offsetmgr offsets delete billing -t orders --bootstrap-server k1:9092 --execute
offsetmgr offsets export saved.avro --all-groups --bootstrap-server k1:9092
offsetmgr offsets export - billing --as csv
offsetmgr offsets import saved.avro --bootstrap-server k1:9092 --execute
offsetmgr offsets import saved.avro billing
offsetmgr offsets diff --from zookeeper://z1:2181 --to kafka://k1:9092
offsetmgr offsets diff billing --from file:saved.avro --to kafka://k1:9092
offsetmgr offsets diff --from kafka://east:9092 --to kafka://west:9092 --translate auto --rename-topic '(.*)=east.\1'
offsetmgr groups where billing --context prod
offsetmgr groups where --all-groups --window 30
offsetmgr edits list --last 10
offsetmgr edits list --group billing
offsetmgr edits show 20261126-001122-a1b2
offsetmgr edits undo 20261126-001122-a1b2
offsetmgr edits undo 20261126-001122-a1b2 --execute
offsetmgr doctor --context 'prod-*'
offsetmgr doctor --bootstrap-server k1:9092 --zookeeper z1:2181 -g billing
offsetmgr mcp --context prod,test
offsetmgr mcp --bootstrap-server k1:9092 --command-config read-only.properties
offsetmgr context show prod
offsetmgr context use prod
offsetmgr context add prod --bootstrap-server k1:9092 --command-config prod.properties
offsetmgr sandbox restart shop-0 offsets.storage=kafka dual.commit.enabled=true
offsetmgr migrate plan billing --from zookeeper://z1:2181 --to kafka://k1:9092 -o billing.plan
offsetmgr migrate apply billing.plan
offsetmgr migrate renew fleet.plan --wave 3 -o fleet-2.plan
offsetmgr migrate readiness --all-groups --from kafka://east:9092 --to kafka://west:9092
offsetmgr migrate readiness billing --from kafka://east:9092 --to kafka://west:9092 --rename-topic '(.*)=east.\1' --max-repeats 1000
offsetmgr migrate status billing.plan
offsetmgr migrate report fleet.json --context prod
offsetmgr migrate report --context prod --format html -o report.html
offsetmgr migrate verify billing.plan
offsetmgr migrate rollback billing.plan
offsetmgr migrate finalize billing.plan
offsetmgr migrate cutover billing --from kafka://east:9092 --to kafka://west:9092 --state billing.json --execute
offsetmgr migrate mirror billing --from zookeeper://z1:2181 --to kafka://k1:9092 --once
offsetmgr cluster describe --bootstrap-server k1:9092
offsetmgr runbook write billing --to kafka --zookeeper z1:2181 --bootstrap-server k1:9092 -o billing.json
offsetmgr runbook check billing --phase dual --baseline billing.json --zookeeper z1:2181 --bootstrap-server k1:9092
offsetmgr runbook bounce billing --to-phase dual --command './restart {host} {settings}' --baseline billing.json
offsetmgr zk tree /consumers --zookeeper z1:2181
offsetmgr zk brokers --zookeeper z1:2181
offsetmgr zk topics -t 'ord*' --zookeeper z1:2181
offsetmgr zk members billing --zookeeper z1:2181
offsetmgr zk owners billing --zookeeper z1:2181
offsetmgr zk check billing --zookeeper z1:2181
offsetmgr zk check --all-groups --zookeeper z1:2181
offsetmgr zk elect -t orders --zookeeper z1:2181 --execute
offsetmgr zk reassign --reassignment-json-file moves.json --zookeeper z1:2181 --execute
offsetmgr zk delete-topic --topic old-orders --zookeeper z1:2181 --execute
offsetmgr manager serve --listen 0.0.0.0:9095 --bootstrap-server k1:9092
offsetmgr manager status --bootstrap-server k1:9092
offsetmgr manager dump --shard 3 --bootstrap-server k1:9092
offsetmgr log dump /var/kafka/orders-0
offsetmgr log verify /var/kafka
offsetmgr log recover /var/kafka/orders-0 --to /tmp/repaired --execute
offsetmgr log offsets /disks/broker1 /disks/broker2 --to file:saved.avro --execute
offsetmgr spark audit -o audit --bootstrap-server k1:9092
offsetmgr spark diff --from zookeeper://z1:2181 --to kafka://k1:9092
offsetmgr spark copy --from zookeeper://z1:2181 --to kafka://k1:9092 --all-groups --execute
offsetmgr period status --root /offsetmgr/periods/daily --zookeeper z1:2181
offsetmgr period history --root /offsetmgr/periods/daily --zookeeper z1:2181
offsetmgr period rerun --root /offsetmgr/periods/daily --from 2026-11-21T00:00:00 --length PT1H --name again --zookeeper z1:2181
offsetmgr period abort --root /offsetmgr/periods/daily --zookeeper z1:2181 --execute
offsetmgr sandbox up --old-consumers 2 --group shop --topic orders
offsetmgr sandbox up --clusters 2 --mirror
