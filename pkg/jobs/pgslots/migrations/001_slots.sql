-- Names are bytea because a user's key is any bytes, and not all are text. psql shows
-- them as text after "SET bytea_output = 'escape'".

CREATE TABLE @schema@.slots (
    key    bytea       NOT NULL, -- the user
    job    bytea       NOT NULL,
    queue  bytea       NOT NULL,
    holder bytea,                -- NULL: reserved
    until  timestamptz NOT NULL, -- the end of the lease or reservation
    since  timestamptz NOT NULL, -- when it was taken or reserved
    place  bigint      NOT NULL, -- where in the line the job stood; 0: it did not
    PRIMARY KEY (key, job)
) WITH (
    -- A lease is renewed in place: no index holds what changes, and pages have room.
    fillfactor = 70,
    -- The table is small and all of it is always being replaced, so that a share of it
    -- says nothing about when to vacuum.
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 20000,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 20000
);

CREATE INDEX slots_reserved ON @schema@.slots (key) WHERE holder IS NULL;

CREATE TABLE @schema@.line (
    key   bytea  NOT NULL,
    queue bytea  NOT NULL,
    place bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    job   bytea  NOT NULL,
    PRIMARY KEY (key, queue, place),
    UNIQUE (key, job)
) WITH (
    autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_insert_scale_factor = 0.05, autovacuum_vacuum_insert_threshold = 20000
);

-- How long each line is, so that parking a job does not count the others.
CREATE TABLE @schema@.lines (
    key    bytea PRIMARY KEY,
    parked int   NOT NULL CHECK (parked >= 0)
) WITH (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000
);

-- Every function that changes something of a user begins by this, as a statement of its
-- own. What it does next is a new statement, so that it sees, in a READ COMMITTED
-- transaction, all that those before it in the lock have committed. In one statement
-- with the lock it would not: the statement's snapshot is older than its lock.
--
-- Plans are made once for a session, often when the tables are nearly empty, and have to
-- be right for full ones. Of the scans only an index scan marks the entries of rows that
-- are gone, so that the next need not go through them: with bitmap scans, which are what
-- the planner likes, a pair of calls takes 2.5 times as long between two vacuums.
CREATE FUNCTION @schema@.lock_users(VARIADIC us bytea[]) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'the transaction has to be read committed' USING ERRCODE = 'SL001';
    END IF;
    PERFORM set_config('synchronous_commit', 'off', true), -- of this transaction
            set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true),
            -- To plan a call of together for its arguments takes as long as the call.
            set_config('plan_cache_mode', 'force_generic_plan', true);
    IF cardinality(us) = 0 THEN
        RETURN;
    ELSIF cardinality(us) = 1 THEN
        PERFORM pg_advisory_xact_lock(@schema@.lock_key(us[1]));
        RETURN;
    END IF;
    -- In one order everywhere, so that no two wait for each other.
    PERFORM pg_advisory_xact_lock(k.key)
    FROM (SELECT DISTINCT @schema@.lock_key(u) AS key FROM unnest(us) AS u ORDER BY 1) AS k;
END $$;

CREATE FUNCTION @schema@.lock_key(u bytea) RETURNS bigint
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT hashtextextended(encode(u, 'hex'), '@schema@.slots'::regclass::oid::bigint)
$$;

-- limit_of is how many of a user's jobs may run in a queue: ns are the limits of qs, and others
-- is that of each other queue.
CREATE FUNCTION @schema@.limit_of(q bytea, others int, qs bytea[], ns int[]) RETURNS int
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT coalesce(ns[array_position(qs, q)], others)
$$;

-- count_line notes that n more jobs of a user are parked.
CREATE FUNCTION @schema@.count_line(u bytea, n int) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE @schema@.lines c SET parked = c.parked + n WHERE c.key = u;
    IF NOT FOUND THEN
        INSERT INTO @schema@.lines (key, parked) VALUES (u, n);
    ELSIF n < 0 THEN
        DELETE FROM @schema@.lines c WHERE c.key = u AND c.parked = 0;
    END IF;
END $$;

-- heads are the first in a user's line of each queue. It looks at one row for each, not
-- at the whole line.
CREATE FUNCTION @schema@.heads(u bytea) RETURNS TABLE (queue bytea, place bigint)
LANGUAGE sql STABLE AS $$
    WITH RECURSIVE heads AS (
        (SELECT l.queue, l.place FROM @schema@.line l WHERE l.key = u ORDER BY l.queue, l.place LIMIT 1)
        UNION ALL
        SELECT n.queue, n.place
        FROM heads h
        CROSS JOIN LATERAL (
            SELECT l.queue, l.place FROM @schema@.line l WHERE l.key = u AND l.queue > h.queue
            ORDER BY l.queue, l.place LIMIT 1
        ) AS n
    )
    SELECT h.queue, h.place FROM heads h
$$;

-- Durations are in microseconds.

CREATE FUNCTION @schema@.acquire(u bytea, j bytea, q bytea, h bytea, total int, others int, qs bytea[], ns int[],
    lease bigint, park boolean, most int,
    OUT granted boolean, OUT running int, OUT in_queue int, OUT place int)
LANGUAGE plpgsql AS $$
DECLARE
    t     timestamptz;
    ended boolean;     -- there are slots to free
    has   boolean;     -- the job has a slot
    line  int;         -- how many are parked
    mine  bigint;      -- the job's place among them
    at    bytea := q;  -- its queue: that in which it first came
BEGIN
    PERFORM @schema@.lock_users(u);
    t := clock_timestamp();
    granted := true;
    place := 0;
    SELECT count(*) FILTER (WHERE s.until > t), count(*) FILTER (WHERE s.until > t AND s.queue = q),
           coalesce(bool_or(s.until <= t), false), coalesce(bool_or(s.job = j AND s.until > t), false),
           coalesce((SELECT c.parked FROM @schema@.lines c WHERE c.key = u), 0)
    INTO running, in_queue, ended, has, line
    FROM @schema@.slots s WHERE s.key = u;
    IF ended THEN
        DELETE FROM @schema@.slots s WHERE s.key = u AND s.until <= t;
    END IF;

    IF has THEN
        UPDATE @schema@.slots s SET holder = h, until = t + lease * interval '1 microsecond',
            since = CASE WHEN s.holder IS NULL THEN t ELSE s.since END
        WHERE s.key = u AND s.job = j
        RETURNING s.queue INTO at;
    ELSIF line > 0 THEN
        SELECT l.place, l.queue INTO mine, at FROM @schema@.line l WHERE l.key = u AND l.job = j;
        at := coalesce(at, q);
    END IF;
    IF at <> q THEN
        SELECT count(*) INTO in_queue FROM @schema@.slots s WHERE s.key = u AND s.queue = at;
    END IF;
    IF has THEN
        RETURN;
    END IF;

    granted := running < total AND in_queue < @schema@.limit_of(at, others, qs, ns);
    IF granted AND line > 0 THEN -- unless somebody before it could use the slot
        granted := NOT EXISTS (
            SELECT FROM @schema@.heads(u) AS f
            WHERE (mine IS NULL OR f.place < mine)
            AND (SELECT count(*) FROM @schema@.slots s WHERE s.key = u AND s.queue = f.queue)
                < @schema@.limit_of(f.queue, others, qs, ns));
    END IF;
    IF granted THEN
        IF mine IS NOT NULL THEN
            DELETE FROM @schema@.line l WHERE l.key = u AND l.job = j;
            PERFORM @schema@.count_line(u, -1);
        END IF;
        INSERT INTO @schema@.slots (key, job, queue, holder, until, since, place)
        VALUES (u, j, at, h, t + lease * interval '1 microsecond', t, coalesce(mine, 0));
        running := running + 1;
        in_queue := in_queue + 1;
        RETURN;
    END IF;

    IF mine IS NOT NULL THEN
        SELECT count(*) INTO place FROM @schema@.line l WHERE l.key = u AND l.place <= mine;
    ELSIF park AND line < most THEN
        INSERT INTO @schema@.line (key, queue, job) VALUES (u, q, j);
        PERFORM @schema@.count_line(u, 1);
        place := line + 1;
    END IF;
END $$;

-- together makes many calls of acquire (takes) and release (not takes) in one statement, as far as they are simple: of
-- users whose lock nobody has, who have no line and no slot that has ended, and whose claims all fit. Nothing waits
-- here, so that no user's lock holds up another user's jobs. It returns which calls were made, from 1, with
-- what acquire returns; the others have to be made one by one. ofs are the limits of the queues of the claims.
CREATE FUNCTION @schema@.together(us bytea[], js bytea[], qs bytea[], hs bytea[], takes boolean[], totals int[], ofs int[], leases bigint[])
RETURNS TABLE (made int, running int, in_queue int)
LANGUAGE plpgsql AS $$
DECLARE
    t      timestamptz;
    simple bytea[]; -- the users whose calls can be made
BEGIN
    PERFORM @schema@.lock_users(VARIADIC '{}'); -- none yet
    SELECT array_agg(k.u) INTO simple
    FROM (SELECT DISTINCT c.u FROM unnest(us) AS c (u)) AS k WHERE pg_try_advisory_xact_lock(@schema@.lock_key(k.u));
    t := clock_timestamp();
    -- A statement of its own after the locks, see lock_users.
    SELECT array_agg(k.u) INTO simple
    FROM unnest(simple) AS k (u)
    WHERE NOT EXISTS (SELECT FROM @schema@.lines c WHERE c.key = k.u)
        AND NOT EXISTS (SELECT FROM @schema@.slots s WHERE s.key = k.u AND s.until <= t);

    IF false = ANY(takes) THEN -- without a line nobody gets what becomes free
        DELETE FROM @schema@.slots s
        USING unnest(us, js, hs, takes) AS c (u, j, h, take)
        WHERE NOT c.take AND c.u = ANY(simple) AND s.key = c.u AND s.job = c.j AND s.holder = c.h;
        RETURN QUERY
        SELECT c.i::int, 0, 0 FROM unnest(us, takes) WITH ORDINALITY AS c (u, take, i) WHERE NOT c.take AND c.u = ANY(simple);
    END IF;
    IF true <> ALL(takes) THEN
        RETURN;
    END IF;
    RETURN QUERY
    WITH counted AS (
        SELECT c.*,
            (SELECT count(*) FROM @schema@.slots s WHERE s.key = c.u) + row_number() OVER (PARTITION BY c.u ORDER BY c.i) AS n,
            (SELECT count(*) FROM @schema@.slots s WHERE s.key = c.u AND s.queue = c.q) + row_number() OVER (PARTITION BY c.u, c.q ORDER BY c.i) AS n_queue,
            -- An earlier attempt may have the job's slot, or be in this call.
            EXISTS (SELECT FROM @schema@.slots s WHERE s.key = c.u AND s.job = c.j) OR count(*) OVER (PARTITION BY c.u, c.j) > 1 AS again
        FROM unnest(us, js, qs, hs, takes, totals, ofs, leases) WITH ORDINALITY AS c (u, j, q, h, take, total, of_queue, lease, i)
        WHERE c.take AND c.u = ANY(simple)
    ), fitting AS (
        SELECT k.*, bool_and(NOT k.again AND k.n <= k.total AND k.n_queue <= k.of_queue) OVER (PARTITION BY k.u) AS fits FROM counted k
    ), taken AS (
        INSERT INTO @schema@.slots (key, job, queue, holder, until, since, place)
        SELECT f.u, f.j, f.q, f.h, t + f.lease * interval '1 microsecond', t, 0 FROM fitting f WHERE f.fits
    )
    SELECT f.i::int, f.n::int, f.n_queue::int FROM fitting f WHERE f.fits;
END $$;

-- renew returns which of the claims are lost, from 1.
CREATE FUNCTION @schema@.renew(us bytea[], js bytea[], hs bytea[], lease bigint) RETURNS SETOF int
LANGUAGE plpgsql AS $$
DECLARE
    t timestamptz;
BEGIN
    PERFORM @schema@.lock_users(VARIADIC us);
    t := clock_timestamp();
    RETURN QUERY
    WITH kept AS (
        UPDATE @schema@.slots s SET until = t + lease * interval '1 microsecond'
        FROM unnest(us, js, hs) AS c (u, j, h)
        WHERE s.key = c.u AND s.job = c.j AND s.holder = c.h AND s.until > t
        RETURNING s.key, s.job, s.holder
    )
    SELECT c.i::int
    FROM unnest(us, js, hs) WITH ORDINALITY AS c (u, j, h, i)
    WHERE NOT EXISTS (SELECT FROM kept k WHERE k.key = c.u AND k.job = c.j AND k.holder = c.h);
END $$;

-- release frees a slot, unless its holder or job is NULL, and then reserves those that
-- are free for the jobs of the line, and returns these in their order.
CREATE FUNCTION @schema@.release(u bytea, j bytea, h bytea, total int, others int, qs bytea[], ns int[], reserve bigint)
RETURNS TABLE (handed bytea, handed_queue bytea)
LANGUAGE plpgsql AS $$
DECLARE
    t     timestamptz;
    free  int;
    taken int;
BEGIN
    PERFORM @schema@.lock_users(u);
    t := clock_timestamp();
    DELETE FROM @schema@.slots s WHERE s.key = u AND (s.until <= t OR s.job = j AND s.holder = h);
    IF NOT EXISTS (SELECT FROM @schema@.lines c WHERE c.key = u) THEN
        RETURN;
    END IF;
    SELECT total - count(*) INTO free FROM @schema@.slots s WHERE s.key = u;
    IF free <= 0 THEN
        RETURN;
    END IF;
    -- Taking the first whose queue has room, until no slot is free, takes of each queue
    -- as many as it has room for, and of these the first.
    RETURN QUERY
    WITH next AS (
        SELECT l.place, l.queue, l.job
        FROM @schema@.heads(u) AS f
        CROSS JOIN LATERAL (
            SELECT l.place, l.queue, l.job FROM @schema@.line l WHERE l.key = u AND l.queue = f.queue
            ORDER BY l.place
            LIMIT greatest(0, @schema@.limit_of(f.queue, others, qs, ns)
                - (SELECT count(*) FROM @schema@.slots s WHERE s.key = u AND s.queue = f.queue))
        ) AS l
        ORDER BY l.place
        LIMIT free
    ), unparked AS (
        DELETE FROM @schema@.line l USING next n WHERE l.key = u AND l.queue = n.queue AND l.place = n.place
    ), reserved AS (
        INSERT INTO @schema@.slots (key, job, queue, until, since, place)
        SELECT u, n.job, n.queue, t + reserve * interval '1 microsecond', t, n.place FROM next n
    )
    SELECT n.job, n.queue FROM next n ORDER BY n.place;
    GET DIAGNOSTICS taken = ROW_COUNT;
    IF taken > 0 THEN
        PERFORM @schema@.count_line(u, -taken);
    END IF;
END $$;

CREATE FUNCTION @schema@.forget(u bytea, j bytea) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM @schema@.lock_users(u);
    DELETE FROM @schema@.line l WHERE l.key = u AND l.job = j;
    IF FOUND THEN
        PERFORM @schema@.count_line(u, -1);
    END IF;
    DELETE FROM @schema@.slots s WHERE s.key = u AND s.job = j AND s.holder IS NULL;
END $$;

-- sweep deletes slots that ended, of at most so many users, for those whose users never
-- come again. A user whose lock is taken is left to who has it.
CREATE FUNCTION @schema@.sweep(most int) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    u bytea;
    t timestamptz := clock_timestamp();
BEGIN
    IF NOT EXISTS (SELECT FROM @schema@.slots s WHERE s.until <= t) THEN
        RETURN;
    END IF;
    PERFORM @schema@.lock_users(VARIADIC '{}'); -- none yet
    FOR u IN SELECT DISTINCT s.key FROM @schema@.slots s WHERE s.until <= t LIMIT most LOOP
        IF pg_try_advisory_xact_lock(@schema@.lock_key(u)) THEN
            DELETE FROM @schema@.slots s WHERE s.key = u AND s.until <= t;
        END IF;
    END LOOP;
END $$;

CREATE FUNCTION @schema@.waiting(after bytea, most int) RETURNS SETOF bytea
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    t timestamptz := clock_timestamp();
    u bytea := after;
BEGIN
    FOR i IN 1..most LOOP
        SELECT least(
            (SELECT l.key FROM @schema@.line l WHERE l.key > u ORDER BY l.key LIMIT 1),
            (SELECT s.key FROM @schema@.slots s WHERE s.holder IS NULL AND s.until > t AND s.key > u ORDER BY s.key LIMIT 1)
        ) INTO u;
        EXIT WHEN u IS NULL;
        RETURN NEXT u;
    END LOOP;
END $$;
