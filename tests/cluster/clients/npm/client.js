// kafkajs, driven by one JSON object as its argument: write records, also in transactions, or read some, and print what
// came as JSON.
const { Kafka, logLevel } = require("kafkajs");

const text = (bytes) => (bytes === null || bytes === undefined ? null : bytes.toString());

async function write(kafka, { topic, records }) {
  const producer = kafka.producer({ idempotent: true });
  await producer.connect();
  const messages = records.map(([key, value, headers]) => ({ key, value, headers, partition: 0 }));
  await producer.send({ topic, acks: -1, messages });
  await producer.disconnect();
}

async function transact(kafka, { topic, transactions, id }) {
  const producer = kafka.producer({ idempotent: true, transactionalId: id, maxInFlightRequests: 1 });
  await producer.connect();
  for (const [values, commit] of transactions) {
    const transaction = await producer.transaction();
    const messages = values.map((value, number) => ({ value, partition: number % 2 }));
    await transaction.send({ topic, acks: -1, messages });
    await (commit ? transaction.commit() : transaction.abort());
  }
  await producer.disconnect();
}

async function read(kafka, { topic, count, group }) {
  const consumer = kafka.consumer({ groupId: group });
  await consumer.connect();
  await consumer.subscribe({ topic, fromBeginning: true });
  const read = [];
  await new Promise((resolve) => {
    consumer.run({
      eachMessage: async ({ message }) => {
        const headers = Object.entries(message.headers).map(([name, value]) => [name, text(value)]);
        read.push([text(message.key), text(message.value), headers, Number(message.timestamp)]);
        if (read.length === count) resolve();
      },
    });
  });
  await consumer.disconnect();
  console.log(JSON.stringify(read));
}

const asked = JSON.parse(process.argv[2]);
const kafka = new Kafka({ clientId: "kafkajs", brokers: asked.brokers, logLevel: logLevel.NOTHING });
const act = asked.records ? write : asked.transactions ? transact : read;
act(kafka, asked).catch((error) => {
  console.error(String(error));
  process.exit(1);
});
