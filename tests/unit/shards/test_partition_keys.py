"""Keys for Spark's hash partitioner, against hashes that Spark itself gives."""

import numpy as np
import pytest

from jobs.shards.partition_keys import partition_keys, spark_hash

# SELECT hash(CAST(value AS INT)), as Spark 4.3 answers.
SPARK_SAYS = {
    0: 933211791,
    1: -559580957,
    2: 1765031574,
    -1: -1604776387,
    42: 29417773,
    123456789: -598405280,
    2**31 - 1: 133916647,
    -(2**31): 723455942,
}


def test_hash_is_sparks():
    assert spark_hash(np.asarray(list(SPARK_SAYS))).tolist() == list(SPARK_SAYS.values())


@pytest.mark.parametrize("num_partitions", [1, 2, 3, 16, 257, 4096])
def test_one_key_a_partition(num_partitions):
    keys = partition_keys(num_partitions)
    assert len(keys) == len(set(keys)) == num_partitions
    targets = np.mod(spark_hash(np.asarray(keys)).astype(np.int64), num_partitions)
    assert targets.tolist() == list(range(num_partitions))


def test_keys_are_the_smallest():
    keys = partition_keys(8)
    targets = np.mod(spark_hash(np.arange(max(keys) + 1)).astype(np.int64), 8).tolist()
    assert keys == [targets.index(partition) for partition in range(8)]
    assert all(type(key) is int for key in keys)
